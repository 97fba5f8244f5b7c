// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/reader.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/file_system.h"
#include "checkpoint/folders.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/writer.h"
#include "files/crc32c.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

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
      " is not a complete checkpoint: it has no state.json, which is written last");
  auto state = read_sealed(path);
  TORCH_CHECK_VALUE(
      state.contains("format") && state["format"] == "sherd" &&
          whole_number(state, "version", path) >= 1 &&
          whole_number(state, "version", path) <= kVersion,
      "[checkpoint] ", path, " is of another format or version: this program reads versions 1 to ",
      kVersion);
  TORCH_CHECK_VALUE(
      whole_number(state, "ranks", path) <= 1 << 20, "[checkpoint] ", path, ": too many ranks");
  for (const auto& [name, bytes] : inner(state, "files", path).items()) {
    TORCH_CHECK_VALUE(
        bytes.is_number_integer() && fs::path(name).filename() == name, "[checkpoint] ", path,
        ": '", name, "' is not a file of this folder");
  }
  for (const auto& [name, crc] : inner(state, "texts", path).items()) {
    TORCH_CHECK_VALUE(
        fs::path(name).filename() == name, "[checkpoint] ", path, ": '", name,
        "' is not a file of this folder");
  }
  return state;
}

/// The files with the checksums. Version 1 has one of each rank that saved.
std::vector<std::string> index_names(const Json& state) {
  if (state["version"] != 1) return {kTensorsName, kChecksumsName};
  std::vector<std::string> result;
  for (int64_t rank = 0; rank < state["ranks"].get<int64_t>(); ++rank) {
    result.push_back("checksums-" + std::to_string(rank) + ".json");
  }
  return result;
}

/// Throws if a file of the checkpoint is missing or has another size than state.json says.
void check_sizes(const std::string& folder, const Json& state) {
  const auto check = [&](const std::string& name, std::optional<int64_t> bytes) {
    std::error_code code;
    const auto size = fs::file_size(fs::path(folder) / name, code);
    TORCH_CHECK_VALUE(
        !code, "[checkpoint] ", folder, " is not a complete checkpoint: ", name, " is missing");
    TORCH_CHECK_VALUE(
        !bytes || static_cast<int64_t>(size) == *bytes, "[checkpoint] ", folder,
        " is not a complete checkpoint: ", name, " has ", size, " bytes instead of ", *bytes);
  };
  for (const auto& [name, bytes] : state["files"].items()) check(name, bytes.get<int64_t>());
  for (const auto& [name, crc] : state["texts"].items()) check(name, std::nullopt);
  for (const auto& name : index_names(state)) check(name, std::nullopt);
}

std::optional<Set> set_of(const std::string& file) {
  for (const Set set : kSets) {
    if (file.starts_with(std::string(to_text(set)) + "-")) return set;
  }
  return std::nullopt;
}

}  // namespace

struct CheckpointReader::File {
  std::string path;
  int64_t size = 0;
  std::unique_ptr<MappedFile> bytes;     // once something of it is read
  std::span<const BlockRecord> blocks;   // by rising place, one after another
  std::vector<BlockRecord> own_blocks;   // that they are, where no file has them as they are needed
  std::vector<bool> verified;            // by block
  std::map<int64_t, std::string> names;  // of tensors, by their first byte
};

CheckpointReader::CheckpointReader(const std::string& folder, Check check)
    : folder_(locate_checkpoint(folder)), state_(read_state(folder_)) {
  if (check == Check::all_sizes) check_sizes(folder_, state_);
  if (state_["version"] == 1) {
    take_version_1();
  } else {
    take_index();
  }
}

CheckpointReader::~CheckpointReader() = default;

CheckpointReader::File& CheckpointReader::add(const std::string& name) {
  const auto& sizes = state_["files"];
  const auto found = sizes.find(name);
  TORCH_CHECK_VALUE(
      set_of(name) && found != sizes.end(), "[checkpoint] ", folder_, ": there is a file '", name,
      "', which is none of a checkpoint's, or which state.json does not have");
  auto file = std::make_unique<File>();
  file->path = (fs::path(folder_) / name).string();
  file->size = found->get<int64_t>();
  files_.push_back(std::move(file));
  return *files_.back();
}

void CheckpointReader::take_tensors(File& file, const SafetensorsHeader& header) {
  auto& known = tensors_[*set_of(fs::path(file.path).filename().string())];
  for (const auto& [tensor, about] : header.tensors) {
    const int64_t offset = static_cast<int64_t>(header.size) + about.begin;
    file.names[offset] = tensor;
    const auto fresh =
        known
            .try_emplace(tensor, PlannedTensor{about.dtype, about.shape, files_.size() - 1, offset})
            .second;
    TORCH_CHECK_VALUE(
        fresh, "[checkpoint] ", file.path, ": tensor '", tensor, "' is in another file, too");
  }
}

void CheckpointReader::take_index() {
  const auto index = read_index(folder_);
  checksums_ = std::make_unique<MappedFile>((fs::path(folder_) / kChecksumsName).string());
  const auto* records = reinterpret_cast<const BlockRecord*>(checksums_->data());
  const int64_t most = static_cast<int64_t>(checksums_->size() / sizeof(BlockRecord));
  for (const auto& entry : index) {
    auto& file = add(entry.name);
    TORCH_CHECK_VALUE(
        file.size >= 0 && entry.first + entry.count <= most, "[checkpoint] ", checksums_->path(),
        " is damaged: it has ", checksums_->size(), " bytes, too few for ", entry.name);
    take_tensors(
        file, parse_safetensors_header(file.path, entry.header, static_cast<size_t>(file.size)));
    file.blocks = {records + entry.first, static_cast<size_t>(entry.count)};
    file.verified.assign(file.blocks.size(), false);
  }
  TORCH_CHECK_VALUE(
      files_.size() == state_["files"].size(), "[checkpoint] ", folder_, "/", kTensorsName,
      " is damaged: it has ", files_.size(), " of the ", state_["files"].size(), " files");
}

void CheckpointReader::take_version_1() {
  for (const auto& [name, bytes] : state_["files"].items()) {
    auto& file = add(name);
    const auto& map = open(file);
    take_tensors(file, parse_safetensors(file.path, {map.data(), map.size()}));
  }
  for (const auto& name : index_names(state_)) {
    take_checksums((fs::path(folder_) / name).string());
  }
  for (const auto& file : files_) {
    check_blocks(file->path, file->size, file->own_blocks);
    file->blocks = file->own_blocks;
    file->verified.assign(file->blocks.size(), false);
  }
}

void CheckpointReader::take_checksums(const std::string& path) {
  const auto sums = read_sealed(path);
  const auto& files = inner(sums, "files", path);
  for (const auto& file : files_) {
    const auto found = files.find(fs::path(file->path).filename().string());
    if (found == files.end()) continue;
    for (const auto& entry : *found) {
      const bool fine = entry.is_array() && entry.size() == 3 &&
                        std::all_of(entry.begin(), entry.end(), [](const Json& number) {
                          return number.is_number_unsigned();
                        });
      const bool inside = fine && entry[0].get<uint64_t>() < entry[1].get<uint64_t>() &&
                          entry[1].get<uint64_t>() <= static_cast<uint64_t>(file->size) &&
                          entry[2].get<uint64_t>() <= UINT32_MAX;
      TORCH_CHECK_VALUE(
          inside, "[checkpoint] ", path,
          " is damaged: it has a block that does not lie in its file");
      file->own_blocks.push_back(
          make_record(entry[0].get<int64_t>(), entry[1].get<int64_t>(), entry[2].get<uint32_t>()));
    }
  }
}

const MappedFile& CheckpointReader::open(File& file) {
  if (file.bytes) return *file.bytes;
  std::error_code code;
  const bool there = fs::exists(file.path, code);
  TORCH_CHECK_VALUE(
      there, "[checkpoint] ", folder_, " is not a complete checkpoint: ", file.path, " is missing");
  file.bytes = std::make_unique<MappedFile>(file.path);
  const auto size = static_cast<int64_t>(file.bytes->size());
  TORCH_CHECK_VALUE(
      size == file.size, "[checkpoint] ", folder_, " is not a complete checkpoint: ", file.path,
      " has ", size, " bytes instead of ", file.size);
  return *file.bytes;
}

void CheckpointReader::verify(File& file, size_t number) {
  if (file.verified[number]) return;
  const auto& block = file.blocks[number];
  const auto* bytes = open(file).data() + block.begin;
  file_counts().bytes_read += int64_t{sizeof(BlockRecord)} + block.end - block.begin;
  if (crc32c(bytes, static_cast<size_t>(block.end - block.begin)) == block.crc) {
    file.verified[number] = true;
    return;
  }
  const auto next = file.names.upper_bound(block.begin);
  TORCH_CHECK_VALUE(
      next != file.names.begin(), "[checkpoint] ", file.path,
      " is damaged: its header is not what was written");
  TORCH_CHECK_VALUE(
      false, "[checkpoint] ", file.path, " is damaged: tensor '", std::prev(next)->second,
      "' is not what was written (bytes ", block.begin, " to ", block.end, ")");
}

void CheckpointReader::verify(File& file, int64_t begin, int64_t end) {
  const auto block = std::upper_bound(
      file.blocks.begin(), file.blocks.end(), begin,
      [](int64_t place, const BlockRecord& one) { return place < one.end; });
  for (auto number = static_cast<size_t>(block - file.blocks.begin()); begin < end; ++number) {
    const bool fine = number < file.blocks.size() && is_sealed(file.blocks[number]) &&
                      file.blocks[number].begin <= begin && begin < file.blocks[number].end &&
                      file.blocks[number].end <= file.size;
    TORCH_CHECK_VALUE(
        fine, "[checkpoint] ", folder_, ": the checksum of bytes from ", begin, " on of ",
        file.path, " is missing or damaged");
    verify(file, number);
    begin = file.blocks[number].end;
  }
}

std::span<const unsigned char> CheckpointReader::read(
    const PlannedTensor& tensor, int64_t begin, int64_t count) {
  auto& file = *files_[tensor.file];
  const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const int64_t first = tensor.offset + begin * size;
  verify(file, 0, 1);  // the header, too
  verify(file, first, first + count * size);
  return {open(file).data() + first, static_cast<size_t>(count * size)};
}

void CheckpointReader::verify() {
  for (const auto& file : files_) verify(*file, 0, file->size);
  for (const auto& [name, crc] : state_["texts"].items()) {
    const MappedFile file((fs::path(folder_) / name).string());
    TORCH_CHECK_VALUE(
        crc.is_number_unsigned() && crc32c(file.data(), file.size()) == crc.get<uint64_t>(),
        "[checkpoint] ", file.path(), " is damaged: it is not what was written");
  }
}

std::optional<std::string> why_incomplete(const std::string& folder) {
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
