// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_plan.h"
#include "checkpoint/shared_file.h"

// Two files say what a checkpoint has, so that a rank that loads its part opens what it needs and
// nothing else: `tensors.json` has the header of every file and where its blocks stand in
// `checksums.bin`, which has one record for each block, by file and rising place.
namespace sherd {

constexpr const char* kTensorsName = "tensors.json";
constexpr const char* kChecksumsName = "checksums.bin";

/// A block of a file, which one rank wrote at once, and its checksum.
struct BlockRecord {
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t crc = 0;   ///< of the block's bytes
  uint32_t seal = 0;  ///< of the three numbers before it
};
static_assert(sizeof(BlockRecord) == 24);

BlockRecord make_record(int64_t begin, int64_t end, uint32_t crc);
/// Whether it is what was written.
bool is_sealed(const BlockRecord& record);

/// A file and its blocks, by number of the file in the plan.
using BlocksOfFiles = std::vector<std::vector<BlockRecord>>;

/// Writes what one rank has written, for the first rank to join. Not synced: it does not stay.
void write_blocks(const std::string& folder, int64_t rank, const BlocksOfFiles& blocks);
/// Reads what all ranks have written, checks that each byte of each file was written once, and
/// removes what it has read.
BlocksOfFiles join_blocks(
    const std::string& folder, int64_t ranks, const std::vector<PlannedFile>& files);
/// Makes both files; the caller syncs them.
std::vector<SharedFile> make_index(
    const std::string& folder, const std::vector<PlannedFile>& files, const BlocksOfFiles& blocks);

/// A file as tensors.json has it.
struct IndexedFile {
  std::string name;
  std::string header;  ///< JSON, without the number in front
  int64_t first = 0;   ///< of its records
  int64_t count = 0;
};
std::vector<IndexedFile> read_index(const std::string& folder);

/// Sorts the blocks of a file and throws, naming it, unless each byte belongs to one.
void check_blocks(const std::string& path, int64_t bytes, std::vector<BlockRecord>& blocks);

}  // namespace sherd
