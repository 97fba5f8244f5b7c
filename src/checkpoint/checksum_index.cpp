// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checksum_index.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/mapped_file.h"
#include "checkpoint/sealed_json.h"
#include "checkpoint/shared_file.h"
#include "files/crc32c.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

std::string in(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

std::string part_name(int64_t rank) {
  return "checksums-" + std::to_string(rank) + ".part";
}

uint32_t seal_of(const BlockRecord& record) {
  return crc32c(&record, offsetof(BlockRecord, seal));
}

/// Adds what one rank has written: for each file a record with its number and how many follow.
void add_part(const std::string& path, BlocksOfFiles& all) {
  const MappedFile file(path);
  const auto count = file.size() / sizeof(BlockRecord);
  std::vector<BlockRecord> records(count);
  if (count > 0) std::memcpy(records.data(), file.data(), count * sizeof(BlockRecord));
  bool fine = file.size() % sizeof(BlockRecord) == 0 &&
              std::all_of(records.begin(), records.end(), is_sealed);
  for (size_t i = 0; fine && i < count;) {
    const auto& head = records[i++];
    fine = head.begin >= 0 && head.begin < std::ssize(all) && head.end >= 0 &&
           head.end <= static_cast<int64_t>(count - i);
    if (!fine) break;
    const auto from = records.begin() + static_cast<int64_t>(i);
    auto& blocks = all[static_cast<size_t>(head.begin)];
    blocks.insert(blocks.end(), from, from + head.end);
    i += static_cast<size_t>(head.end);
  }
  TORCH_CHECK(
      fine, "[checkpoint] ", path,
      " is not what a rank has just written: check the file system, and save again");
}

}  // namespace

BlockRecord make_record(int64_t begin, int64_t end, uint32_t crc) {
  BlockRecord record{begin, end, crc, 0};
  record.seal = seal_of(record);
  return record;
}

bool is_sealed(const BlockRecord& record) {
  return record.seal == seal_of(record);
}

void check_blocks(const std::string& path, int64_t bytes, std::vector<BlockRecord>& blocks) {
  std::sort(blocks.begin(), blocks.end(), [](const BlockRecord& a, const BlockRecord& b) {
    return a.begin < b.begin;
  });
  int64_t end = 0;
  for (const auto& block : blocks) {
    TORCH_CHECK_VALUE(
        block.begin == end, "[checkpoint] ", path, ": bytes ", std::min(block.begin, end), " to ",
        std::max(block.begin, end), " have no checksum, or two: a rank's bytes are missing");
    end = block.end;
  }
  TORCH_CHECK_VALUE(
      end == bytes, "[checkpoint] ", path, ": bytes from ", end,
      " on have no checksum: a rank's bytes are missing");
}

void write_blocks(const std::string& folder, int64_t rank, const BlocksOfFiles& blocks) {
  std::vector<BlockRecord> records;
  for (size_t file = 0; file < blocks.size(); ++file) {
    if (blocks[file].empty()) continue;
    records.push_back(make_record(static_cast<int64_t>(file), std::ssize(blocks[file]), 0));
    records.insert(records.end(), blocks[file].begin(), blocks[file].end());
  }
  const SharedFile part(in(folder, part_name(rank)));
  part.write(records.data(), std::ssize(records) * int64_t{sizeof(BlockRecord)}, 0);
}

BlocksOfFiles join_blocks(
    const std::string& folder, int64_t ranks, const std::vector<PlannedFile>& files) {
  BlocksOfFiles all(files.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto path = in(folder, part_name(rank));
    add_part(path, all);
    unlink(path.c_str());
  }
  for (size_t i = 0; i < files.size(); ++i) {
    check_blocks(in(folder, files[i].name), files[i].bytes, all[i]);
  }
  return all;
}

std::vector<SharedFile> make_index(
    const std::string& folder, const std::vector<PlannedFile>& files, const BlocksOfFiles& blocks) {
  auto records = make_text(in(folder, kChecksumsName), "");
  Json list = Json::array();
  int64_t first = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    constexpr int64_t kSize = sizeof(BlockRecord);
    records.write(blocks[i].data(), std::ssize(blocks[i]) * kSize, first * kSize);
    list.push_back(
        {{"name", files[i].name},
         {"first", first},
         {"count", blocks[i].size()},
         {"header", files[i].header.substr(sizeof(uint64_t))}});
    first += std::ssize(blocks[i]);
  }
  std::vector<SharedFile> result;
  result.push_back(std::move(records));
  result.push_back(make_text(in(folder, kTensorsName), sealed_text({{"files", std::move(list)}})));
  return result;
}

std::vector<IndexedFile> read_index(const std::string& folder) {
  const auto path = in(folder, kTensorsName);
  const auto json = read_sealed(path);
  std::vector<IndexedFile> result;
  try {
    int64_t first = 0;
    for (const auto& one : json.at("files")) {
      result.push_back(
          {one.at("name").get<std::string>(), one.at("header").get<std::string>(),
           one.at("first").get<int64_t>(), one.at("count").get<int64_t>()});
      const auto& file = result.back();
      TORCH_CHECK_VALUE(
          file.first == first && file.count >= 0 && file.count <= int64_t{1} << 40, "[checkpoint] ",
          path, " is damaged: '", file.name, "' has its records where those of another file are");
      first += file.count;
    }
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, "[checkpoint] ", path, " is damaged: ", error.what());
  }
  return result;
}

}  // namespace sherd
