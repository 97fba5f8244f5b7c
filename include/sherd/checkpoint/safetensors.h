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

/// A file of named tensors in the safetensors format, mapped into memory: only what is asked for is
/// read. Everything that its header says is checked when it is opened.
class SHERD_API SafetensorsFile {
 public:
  struct Tensor {
    c10::ScalarType dtype{};
    std::vector<int64_t> shape{};
    int64_t begin = 0;  ///< of its bytes, after the header
    int64_t bytes = 0;
  };
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  const std::map<std::string, Tensor>& tensors() const;
  const std::map<std::string, std::string>& metadata() const;
  /// A copy, on the CPU.
  at::Tensor read(const std::string& name) const;
  /// `count` elements from `begin` on of the flattened tensor.
  at::Tensor read(const std::string& name, int64_t begin, int64_t count) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Writes tensors of any device to a file, which is there whole or not at all.
SHERD_API void write_safetensors(
    const std::string& path,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors,
    const std::map<std::string, std::string>& metadata = {});

}  // namespace sherd
