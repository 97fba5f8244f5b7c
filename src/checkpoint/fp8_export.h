// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/stored_model.h"
#include "sherd/comm/world.h"

namespace sherd {

/// The weights that the model files of a checkpoint have in fp8: e4m3 with one scale for each
/// 128 × 128 elements, in a tensor of its own.
class Fp8Export {
 public:
  Fp8Export() = default;
  /// Measures this rank's elements of the parameters that match a pattern. Throws, naming the
  /// pattern, if it matches no matrix.
  Fp8Export(
      const std::vector<StoredParameter>& parameters, const std::vector<std::string>& patterns);
  /// Makes the scales those of all ranks' elements. Collective; blocks.
  void exchange(const World& world);

  /// Returns the name of the tensor of scales: "….weight_scale_inv".
  static std::string scales_of(const std::string& tensor) { return tensor + "_scale_inv"; }
  static std::vector<int64_t> scale_shape(const std::vector<int64_t>& shape);
  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  /// Returns the names of the tensors in fp8.
  std::vector<std::string> tensors() const;
  /// Returns the scales of a tensor: fp32, on the CPU.
  at::Tensor scales(const std::string& tensor) const;
  /// Encodes elements of a tensor, from the first one on: fp32 on the CPU. Returns their bytes.
  std::vector<uint8_t> encode(
      const std::string& tensor, int64_t first, const at::Tensor& values) const;

 private:
  struct Matrix {
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t first = 0;  ///< index of its first scale among all
  };
  /// Calls visit(element, count, scale) for stretches of a tensor's elements with one scale each;
  /// elements are counted from `first`.
  template <class Visit>
  static void each_stretch(const Matrix& matrix, int64_t first, int64_t count, Visit visit);

  std::map<std::string, Matrix> tensors_;
  at::Tensor amaxes_;  ///< bits of the largest magnitudes, int32
};

/// Returns whether a parameter's tensors are stored in fp8: a floating-point matrix whose name
/// matches.
bool is_exported_in_fp8(const StoredParameter& parameter, const std::vector<std::string>& patterns);

}  // namespace sherd
