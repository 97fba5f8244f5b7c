// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/crc32c.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/writer.h"
#include "sherd/checkpoint/mapped_file.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

struct Block {
  int64_t begin = 0;
  int64_t end = 0;
  uint32_t crc = 0;
  bool verified = false;
};

/// A number of the state, which somebody may have edited and sealed anew.
int64_t whole_number(const Json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  TORCH_CHECK_VALUE(
      found != object.end() && found->is_number_integer() && found->get<int64_t>() >= 0,
      "[checkpoint] ", path, " has no number '", key, "'");
  return found->get<int64_t>();
}

const Json& inner(const Json& object, const char* key, const std::string& path) {
  const auto found = object.find(key);
  TORCH_CHECK_VALUE(
      found != object.end() && found->is_object(), "[checkpoint] ", path, " has no '", key, "'");
  return *found;
}

Json read_state(const std::string& folder) {
  const auto path = (fs::path(folder) / "state.json").string();
  std::error_code code;
  TORCH_CHECK_VALUE(
      fs::exists(path, code), "[checkpoint] ", folder,
      " is no whole checkpoint: it has no state.json, which is written last");
  auto state = read_sealed(path);
  TORCH_CHECK_VALUE(
      state.contains("format") && state.contains("format") && state["format"] == "sherd" &&
          whole_number(state, "version", path) == 1,
      "[checkpoint] ", path, " is of another format or version: this program reads version 1");
  TORCH_CHECK_VALUE(
      whole_number(state, "ranks", path) <= 1 << 20, "[checkpoint] ", path, ": too many ranks");
  for (const auto& [name, bytes] : inner(state, "files", path).items()) {
    TORCH_CHECK_VALUE(
        bytes.is_number_integer() && fs::path(name).filename() == name, "[checkpoint] ", path,
        ": '", name, "' is no file of this folder");
  }
  for (const auto& [name, crc] : inner(state, "texts", path).items()) {
    TORCH_CHECK_VALUE(
        fs::path(name).filename() == name, "[checkpoint] ", path, ": '", name,
        "' is no file of this folder");
  }
  return state;
}

void check_sizes(const std::string& folder, const Json& state) {
  const auto check = [&](const std::string& name, std::optional<int64_t> bytes) {
    std::error_code code;
    const auto size = fs::file_size(fs::path(folder) / name, code);
    TORCH_CHECK_VALUE(
        !code, "[checkpoint] ", folder, " is no whole checkpoint: ", name, " is missing");
    TORCH_CHECK_VALUE(
        !bytes || static_cast<int64_t>(size) == *bytes, "[checkpoint] ", folder,
        " is no whole checkpoint: ", name, " has ", size, " bytes instead of ", *bytes);
  };
  for (const auto& [name, bytes] : state["files"].items()) check(name, bytes.get<int64_t>());
  for (const auto& [name, crc] : state["texts"].items()) check(name, std::nullopt);
  for (int64_t rank = 0; rank < state["ranks"].get<int64_t>(); ++rank) {
    check(checksums_name(rank), std::nullopt);
  }
}

std::optional<Set> set_of(const std::string& file) {
  for (const Set set : kSets) {
    if (file.starts_with(std::string(to_text(set)) + "-")) return set;
  }
  return std::nullopt;
}

}  // namespace

struct CheckpointReader::File {
  explicit File(const std::string& path) : bytes(path) {}
  MappedFile bytes;
  std::vector<Block> blocks;             // by rising place, one after another
  std::map<int64_t, std::string> names;  // of tensors, by their first byte
};

CheckpointReader::CheckpointReader(const std::string& folder)
    : folder_(folder), state_(read_state(folder)) {
  check_sizes(folder, state_);
  for (const auto& [name, bytes] : state_["files"].items()) open(name);
  for (int64_t rank = 0; rank < state_["ranks"].get<int64_t>(); ++rank) {
    take_checksums((fs::path(folder) / checksums_name(rank)).string());
  }
  for (const auto& file : files_) {
    std::sort(file->blocks.begin(), file->blocks.end(), [](const Block& a, const Block& b) {
      return a.begin < b.begin;
    });
    int64_t end = 0;
    for (const auto& block : file->blocks) {
      TORCH_CHECK_VALUE(
          block.begin == end, "[checkpoint] ", file->bytes.path(), ": bytes ",
          std::min(block.begin, end), " to ", std::max(block.begin, end),
          " have no checksum, or two: a rank's bytes are missing");
      end = block.end;
    }
    TORCH_CHECK_VALUE(
        end == static_cast<int64_t>(file->bytes.size()), "[checkpoint] ", file->bytes.path(),
        ": bytes from ", end, " on have no checksum: a rank's bytes are missing");
  }
}

CheckpointReader::~CheckpointReader() = default;

void CheckpointReader::open(const std::string& name) {
  const auto set = set_of(name);
  TORCH_CHECK_VALUE(
      set, "[checkpoint] ", folder_, ": the state names a file '", name, "', which is none of its");
  auto file = std::make_unique<File>((fs::path(folder_) / name).string());
  const auto header =
      parse_safetensors(file->bytes.path(), {file->bytes.data(), file->bytes.size()});
  for (const auto& [tensor, about] : header.tensors) {
    const int64_t offset = static_cast<int64_t>(header.size) + about.begin;
    file->names[offset] = tensor;
    const auto fresh =
        tensors_[*set]
            .try_emplace(tensor, PlannedTensor{about.dtype, about.shape, files_.size(), offset})
            .second;
    TORCH_CHECK_VALUE(
        fresh, "[checkpoint] ", file->bytes.path(), ": tensor '", tensor,
        "' is in another file, too");
  }
  files_.push_back(std::move(file));
}

void CheckpointReader::take_checksums(const std::string& path) {
  const auto sums = read_sealed(path);
  const auto& files = inner(sums, "files", path);
  for (const auto& file : files_) {
    const auto found = files.find(fs::path(file->bytes.path()).filename().string());
    if (found == files.end()) continue;
    for (const auto& entry : *found) {
      const bool fine = entry.is_array() && entry.size() == 3 &&
                        std::all_of(entry.begin(), entry.end(), [](const Json& number) {
                          return number.is_number_unsigned();
                        });
      const bool inside = fine && entry[0].get<uint64_t>() < entry[1].get<uint64_t>() &&
                          entry[1].get<uint64_t>() <= file->bytes.size() &&
                          entry[2].get<uint64_t>() <= UINT32_MAX;
      TORCH_CHECK_VALUE(
          inside, "[checkpoint] ", path,
          " is damaged: it has a block that does not lie in its file");
      file->blocks.push_back(
          {entry[0].get<int64_t>(), entry[1].get<int64_t>(), entry[2].get<uint32_t>()});
    }
  }
}

void CheckpointReader::verify(File& file, int64_t begin, int64_t end) {
  auto block = std::upper_bound(
      file.blocks.begin(), file.blocks.end(), begin,
      [](int64_t place, const Block& one) { return place < one.end; });
  for (; block != file.blocks.end() && block->begin < end; ++block) {
    if (std::exchange(block->verified, true)) continue;
    const auto size = static_cast<size_t>(block->end - block->begin);
    if (crc32c(file.bytes.data() + block->begin, size) == block->crc) continue;
    block->verified = false;
    const auto next = file.names.upper_bound(block->begin);
    TORCH_CHECK_VALUE(
        next != file.names.begin(), "[checkpoint] ", file.bytes.path(),
        " is damaged: its header is not what was written");
    TORCH_CHECK_VALUE(
        false, "[checkpoint] ", file.bytes.path(), " is damaged: tensor '", std::prev(next)->second,
        "' is not what was written (bytes ", block->begin, " to ", block->end, ")");
  }
}

std::span<const unsigned char> CheckpointReader::read(
    const PlannedTensor& tensor, int64_t begin, int64_t count) {
  auto& file = *files_[tensor.file];
  const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const int64_t first = tensor.offset + begin * size;
  verify(file, 0, 1);  // the header, too
  verify(file, first, first + count * size);
  return {file.bytes.data() + first, static_cast<size_t>(count * size)};
}

void CheckpointReader::verify() {
  for (const auto& file : files_) verify(*file, 0, static_cast<int64_t>(file->bytes.size()));
  for (const auto& [name, crc] : state_["texts"].items()) {
    const MappedFile file((fs::path(folder_) / name).string());
    TORCH_CHECK_VALUE(
        crc.is_number_unsigned() && crc32c(file.data(), file.size()) == crc.get<uint64_t>(),
        "[checkpoint] ", file.path(), " is damaged: it is not what was written");
  }
}

std::optional<std::string> why_not_whole(const std::string& folder) {
  try {
    check_sizes(folder, read_state(folder));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return "[checkpoint] " + folder + ": " + error.what();
  }
  return std::nullopt;
}

void verify_checkpoint(const std::string& folder) {
  CheckpointReader(folder).verify();
}

}  // namespace sherd
