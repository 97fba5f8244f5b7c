// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/fp8/encode_weights.h"
#include "nn/fp8_model.h"

// The recipes of fp8, and the bytes that their products are to read.
namespace sherd::testing {

inline const std::vector<std::string>& fp8_recipes() {
  static const std::vector<std::string> all{"fp8", "fp8_wgrad16", "fp8_block", "mxfp8"};
  return all;
}

inline UnitOptions options_of(const ShardingCase& way, const std::string& recipe) {
  UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
  options.precision = Precision::recipe(recipe);
  return options;
}

/// A whole main weight, encoded here.
inline SeenWeight encoded(const at::Tensor& main, const std::string& recipe) {
  const auto on = main.options();
  const auto rows = [&](Scaling scaling, at::IntArrayRef scales, c10::ScalarType dtype) {
    Fp8Matrix result{
        at::empty(main.sizes(), on.dtype(at::kFloat8_e4m3fn)), at::empty(scales, on.dtype(dtype)),
        scaling};
    const WeightRows one{
        result.values.mutable_data_ptr(), result.scales.mutable_data_ptr(), main.const_data_ptr(),
        main.size(0), main.size(1)};
    encode_weight_rows({&one, 1}, main.scalar_type(), scaling, main.device());
    return result;
  };
  const auto transposed = [](const Fp8Matrix& one) {
    const auto values = one.values.view(at::kByte).t().contiguous().view(at::kFloat8_e4m3fn);
    return Fp8Matrix{
        values, one.scales.dim() == 2 ? one.scales.t().contiguous() : one.scales, one.scaling};
  };
  if (recipe == "mxfp8") {
    return {
        rows(Scaling::mx_row, {main.size(0), main.size(1) / 32}, at::kByte),
        rows(Scaling::mx_column, {main.size(0) / 32, main.size(1)}, at::kByte)};
  }
  if (recipe == "fp8_block") {
    auto blocks = rows(Scaling::block, {main.size(0) / 128, main.size(1) / 128}, at::kFloat);
    return {blocks, transposed(blocks)};
  }
  auto row = encode_rows(main.reshape({1, -1}), Scaling::row);
  Fp8Matrix one{row.values.view(main.sizes()), row.scales, Scaling::tensor};
  return {one, transposed(one)};
}

inline void expect_same(const Fp8Matrix& found, const Fp8Matrix& wanted, const std::string& what) {
  ASSERT_TRUE(found.values.defined()) << what;
  EXPECT_EQ(found.scaling, wanted.scaling) << what;
  EXPECT_TRUE(at::equal(found.values.view(at::kByte), wanted.values.view(at::kByte))) << what;
  EXPECT_TRUE(at::equal(found.scales, wanted.scales)) << what;
}

}  // namespace sherd::testing
