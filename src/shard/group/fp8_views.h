// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/fp8/encode.h"
#include "shard/group/group_layout.h"

namespace sherd {

/// A weight in fp8 as the products of a pass read it: w[M, K], which a product multiplies with
/// inputs [T, K].
struct Fp8Weight {
  Fp8 recipe{};
  c10::ScalarType compute{};  ///< dtype of the products' results
  Fp8Matrix weight;           ///< [M, K], contracted over K
  /// In a backward, for the input's gradient: the transposed copy [K, M], or (mx) [M, K] encoded
  /// for a contraction over M. Without values in a forward.
  Fp8Matrix backward;
};

/// The fp8 weights of a group while its unit is gathered.
class Fp8Views {
 public:
  explicit Fp8Views(const GroupLayout& layout) : layout_(layout) {}
  Fp8Views(const Fp8Views&) = delete;
  Fp8Views& operator=(const Fp8Views&) = delete;

  /// Sets the scales of recipes with one for each weight: fp32, in the order of the members.
  void set_scales(at::Tensor scales) { scales_ = std::move(scales); }
  /// Shows full buffers, as GroupLayout::model_buffers() lists them, and in a backward the
  /// transposed copies.
  void show(std::vector<at::Tensor> full, bool backward, std::vector<at::Tensor> transposed);
  void hide();
  bool shown() const { return !full_.empty(); }
  /// Returns a weight. Only while they are shown.
  Fp8Weight weight(size_t member) const;
  /// Returns all weights decoded, in the compute dtype: one flat buffer of the full size.
  at::Tensor decode_all(const std::vector<at::Tensor>& full) const;

 private:
  Fp8Matrix matrix(
      const std::vector<at::Tensor>& buffers, size_t first, size_t member, bool transposed) const;

  const GroupLayout& layout_;
  at::Tensor scales_;
  std::vector<at::Tensor> full_;
  std::vector<at::Tensor> transposed_;
  bool backward_ = false;
};

}  // namespace sherd
