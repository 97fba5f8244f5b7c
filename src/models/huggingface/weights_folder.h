// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace sherd {

/// The shapes of all tensors that a model is stored as, by name.
using TensorShapes = std::map<std::string, std::vector<int64_t>>;

/// The weights of a Hugging Face folder, in whichever files they are. A file is opened when
/// something of it is asked for. Weights in fp8 with scales by blocks, as DeepSeek's models have
/// them, are decoded. All functions throw, naming file and tensor, if something is wrong.
class WeightsFolder {
 public:
  /// Reads config.json, if there is one, and the index or the header of the only file.
  explicit WeightsFolder(const std::filesystem::path& folder);

  /// Throws unless the folder has every tensor of the model and no other, by what the index says.
  void check_names(const TensorShapes& shapes) const;
  /// Throws unless a tensor has this shape, and scales if it is in fp8.
  void check(const std::string& name, at::IntArrayRef shape);
  /// Returns elements of a tensor of this shape, on the CPU: those in fp8 as fp32, others in their
  /// own dtype.
  at::Tensor read(const std::string& name, at::IntArrayRef shape, int64_t begin, int64_t count);

 private:
  const SafetensorsFile& open(const std::string& file);
  const SafetensorsFile& file_of(const std::string& name);
  const SafetensorsFile& checked(const std::string& name, at::IntArrayRef shape);
  bool is_fp8(const SafetensorsFile& file, const std::string& name) const;
  std::vector<int64_t> scale_shape(at::IntArrayRef shape) const;

  std::filesystem::path folder_;
  std::vector<int64_t> block_;                // of fp8: rows and columns with one scale
  std::map<std::string, std::string> files_;  // by tensor
  std::map<std::string, SafetensorsFile> open_;
};

}  // namespace sherd
