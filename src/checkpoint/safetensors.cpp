// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/file_system.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"

namespace sherd {

struct SafetensorsFile::State {
  explicit State(const std::string& path)
      : file(path), header(parse_safetensors(path, {file.data(), file.size()})) {}
  MappedFile file;
  SafetensorsHeader header;
};

SafetensorsFile::SafetensorsFile(const std::string& path) : state_(std::make_unique<State>(path)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::string& SafetensorsFile::path() const {
  return state_->file.path();
}
const std::map<std::string, SafetensorsFile::Tensor>& SafetensorsFile::tensors() const {
  return state_->header.tensors;
}
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->header.metadata;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const auto found = tensors().find(name);
  TORCH_CHECK_VALUE(
      found != tensors().end(), "[safetensors] ", path(), " has no tensor '", name, "'");
  const auto& tensor = found->second;
  const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  return read(name, 0, tensor.bytes / size).view(tensor.shape);
}

at::Tensor SafetensorsFile::read(const std::string& name, int64_t begin, int64_t count) const {
  const auto found = tensors().find(name);
  TORCH_CHECK_VALUE(
      found != tensors().end(), "[safetensors] ", path(), " has no tensor '", name, "'");
  const auto& tensor = found->second;
  const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  TORCH_CHECK_VALUE(
      begin >= 0 && count >= 0 && begin + count <= tensor.bytes / size, "[safetensors] ", path(),
      ": elements ", begin, " to ", begin + count, " of tensor '", name, "', which has ",
      tensor.bytes / size);
  auto result = at::empty({count}, tensor.dtype);
  if (count == 0) return result;
  const auto* from = state_->file.data() + state_->header.size + tensor.begin + begin * size;
  std::memcpy(result.mutable_data_ptr(), from, static_cast<size_t>(count * size));
  file_counts().bytes_read += count * size;
  return result;
}

void write_safetensors(
    const std::string& path,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, SafetensorsFile::Tensor>> entries;
  int64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    entries.push_back({name, {tensor.scalar_type(), tensor.sizes().vec(), begin, bytes}});
    begin += bytes;
  }
  const auto unfinished = path + ".part";
  {
    std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
    file << safetensors_header(entries, metadata);
    for (const auto& [name, tensor] : tensors) {
      const auto bytes = tensor.detach().cpu().contiguous();
      file.write(
          static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::streamsize>(bytes.nbytes()));
    }
    file.flush();
    TORCH_CHECK(
        file, "[safetensors] ", unfinished, " can't be written: check the folder and the disk");
  }
  std::filesystem::rename(unfinished, path);
}

}  // namespace sherd
