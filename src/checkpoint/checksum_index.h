// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_plan.h"
#include "checkpoint/shared_file.h"

// Two files describe the contents of a checkpoint, so that a rank that loads its part opens only
// the files that it needs: `tensors.json` has the header of every file and the range of its records
// in `checksums.bin`, which has one record for each block, sorted by file and offset.
namespace sherd {

constexpr const char* kTensorsName = "tensors.json";
constexpr const char* kChecksumsName = "checksums.bin";

/// A block of a file, which one rank wrote at once, and its checksum.
struct BlockRecord {
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t crc = 0;   ///< checksum of the block's bytes
  uint32_t seal = 0;  ///< checksum of the three numbers before it
};
static_assert(sizeof(BlockRecord) == 24);

BlockRecord make_record(int64_t begin, int64_t end, uint32_t crc);
/// Returns whether the record is as it was written.
bool is_sealed(const BlockRecord& record);

/// The blocks of each file, by the file's number in the plan.
using BlocksOfFiles = std::vector<std::vector<BlockRecord>>;

/// Writes the records of the blocks that one rank has written, for the first rank to join. Not
/// synced, because the file is temporary.
void write_blocks(const std::string& folder, int64_t rank, const BlocksOfFiles& blocks);
/// Joins the records of all ranks and removes their files. Throws unless each byte of each file was
/// written exactly once.
BlocksOfFiles join_blocks(
    const std::string& folder, int64_t ranks, const std::vector<PlannedFile>& files);
/// Writes tensors.json and checksums.bin and returns both; the caller syncs them.
std::vector<SharedFile> make_index(
    const std::string& folder, const std::vector<PlannedFile>& files, const BlocksOfFiles& blocks);

/// The entry of a file in tensors.json.
struct IndexedFile {
  std::string name;
  std::string header;  ///< JSON, without the number in front
  int64_t first = 0;   ///< index of its first record
  int64_t count = 0;
};
std::vector<IndexedFile> read_index(const std::string& folder);

/// Sorts the blocks of a file and throws, naming it, unless each byte belongs to one.
void check_blocks(const std::string& path, int64_t bytes, std::vector<BlockRecord>& blocks);

}  // namespace sherd
