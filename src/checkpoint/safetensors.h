// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// A file of named tensors in the safetensors format, mapped into memory: only requested tensors
/// are read.
class SHERD_API SafetensorsFile {
 public:
  /// A tensor as the header describes it.
  struct Tensor {
    c10::ScalarType dtype{};
    std::vector<int64_t> shape{};
    int64_t begin = 0;  ///< offset of its first byte after the header
    int64_t bytes = 0;  ///< number of its bytes
  };
  /// Opens a file and checks its header. Throws if the header is wrong: every tensor must lie
  /// within the file, and every byte belong to one.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  const std::map<std::string, Tensor>& tensors() const;        ///< all tensors, by name
  const std::map<std::string, std::string>& metadata() const;  ///< the header's metadata
  /// Returns a copy of a tensor, on the CPU. Throws if there is none of that name.
  at::Tensor read(const std::string& name) const;
  /// Returns a copy of `count` elements of the flattened tensor, from `begin` on, on the CPU.
  at::Tensor read(const std::string& name, int64_t begin, int64_t count) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes tensors of any device to a file in the safetensors format. Writes to `<path>.part` and
/// renames that at the end, so an error leaves no partial file at `path`. Throws if it can't write.
SHERD_API void write_safetensors(
    const std::string& path,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors,
    const std::map<std::string, std::string>& metadata = {});

}  // namespace sherd
