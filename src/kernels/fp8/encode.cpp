// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/encode.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "kernels/fp8/encode_loops.h"
#include "kernels/fp8/fp8_math.h"

// Note [A scale per token in a sum over tokens]
// A weight's gradient is a sum over tokens t of g[t, m] · x[t, k], and each row of the gradient has
// a scale r[t] of its own, which can't be taken out of that sum. It goes into the other factor: the
// sum of (g[t, m] / r[t]) · (r[t] · x[t, k]). So the gradient needs one encoding for both products,
// its columns being the bytes of its rows, and the input is encoded again, with r[t] multiplied in.
// Its scale is one for all, c = max over t of r[t] · a[t], where a[t] is the scale of the input's
// row in the forward: |x[t, k]| ≤ 448 a[t], so |r[t] · x[t, k]| ≤ 448 c. All are powers of two, so
// nothing is rounded but the result.

namespace sherd {
namespace {

constexpr int64_t kTensorCore = 16;  // elements: what a product's dims are multiples of

/// The rows of a matrix in fp32.
class WideRows {
 public:
  explicit WideRows(const at::Tensor& x)
      : wide_(x.to(at::kFloat).contiguous()),
        data_(wide_.const_data_ptr<float>()),
        columns_(x.size(1)) {}
  const float* operator[](int64_t row) const { return data_ + row * columns_; }

 private:
  at::Tensor wide_;
  const float* data_;
  int64_t columns_;
};

uint8_t* bytes_of(const at::Tensor& values) {
  return static_cast<uint8_t*>(values.mutable_data_ptr());
}

void encode_rows_on_cpu(const at::Tensor& x, const Fp8Matrix& result) {
  const WideRows rows(x);
  const int64_t count = x.size(0), width = x.size(1);
  const int64_t each = result.scaling == Scaling::row    ? width
                       : result.scaling == Scaling::tile ? kFp8Tile
                                                         : kMxBlock;
  auto* bytes = bytes_of(result.values);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t begin = 0; begin < width; begin += each) {
      const auto* values = rows[row] + begin;
      const float scale = fp8::scale_of(fp8::largest_magnitude(values, each));
      fp8::encode_all(values, fp8::inverse_of(scale), bytes + row * width + begin, each);
      if (result.scaling == Scaling::mx_row) {
        auto* scales = result.scales.mutable_data_ptr<uint8_t>();
        scales[(row * width + begin) / each] = fp8::exponent_of(scale);
      } else {  // a row has one, or its tiles are `count` apart
        result.scales.mutable_data_ptr<float>()[begin / each * count + row] = scale;
      }
    }
  }
}

/// As rows of the transposed matrix, some of which are put back.
void encode_columns_on_cpu(const at::Tensor& x, const Fp8Matrix& result) {
  const bool tiles = result.scaling == Scaling::tile;
  const int64_t length = tiles ? result.values.size(1) : result.values.size(0);
  auto turned = at::zeros({x.size(1), length}, at::kFloat);
  turned.narrow(1, 0, x.size(0)).copy_(x.t());
  const auto rows = encode_rows(turned, tiles ? Scaling::tile : Scaling::mx_row);
  const auto as_bytes = [](const at::Tensor& values) { return values.view(at::kByte); };
  if (tiles) {
    as_bytes(result.values).copy_(as_bytes(rows.values));
    result.scales.copy_(rows.scales);
  } else {
    as_bytes(result.values).copy_(as_bytes(rows.values).t());
    result.scales.copy_(rows.scales.t());
  }
}

void encode_gradient_on_cpu(
    const at::Tensor& gradient, const at::Tensor& input_scales, const Fp8Gradient& result) {
  encode_rows_on_cpu(gradient, result.rows);
  const auto rows = result.rows.values.view(at::kByte);
  auto columns = result.columns.values.view(at::kByte);
  columns.zero_();
  columns.narrow(1, 0, rows.size(0)).copy_(rows.t());
  const auto* mine = result.rows.scales.const_data_ptr<float>();
  const auto* inputs = input_scales.const_data_ptr<float>();
  uint32_t bound = 0;
  for (int64_t row = 0; row < rows.size(0); ++row) {
    bound = std::max(bound, fp8::magnitude_bits(mine[row] * inputs[row]));
  }
  result.bound.fill_(fp8::float_of(bound));
}

void encode_input_again_on_cpu(
    const at::Tensor& input, const Fp8Gradient& gradient, const Fp8Matrix& result) {
  const WideRows rows(input);
  const int64_t count = input.size(0), width = input.size(1);
  const int64_t length = result.values.size(1);
  const auto* scales = gradient.rows.scales.const_data_ptr<float>();
  const float inverse = fp8::inverse_of(*gradient.bound.const_data_ptr<float>());
  result.values.view(at::kByte).zero_();
  auto* bytes = bytes_of(result.values);
  std::vector<uint8_t> row_bytes(static_cast<size_t>(width));
  for (int64_t row = 0; row < count; ++row) {
    fp8::encode_all(rows[row], scales[row] * inverse, row_bytes.data(), width);
    for (int64_t k = 0; k < width; ++k) {
      bytes[k * length + row] = row_bytes[static_cast<size_t>(k)];
    }
  }
}

void check(const at::Tensor& x, const char* what, int64_t multiple) {
  TORCH_CHECK_VALUE(
      x.dim() == 2 && x.size(1) % multiple == 0 &&
          (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 ||
           x.scalar_type() == at::kHalf),
      "[kernels.fp8] ", what, " of ", x.sizes(), " ", x.scalar_type(),
      " can't be encoded: it must be a matrix of fp32, bf16 or fp16 whose rows have a multiple of ",
      multiple, " elements");
}

Fp8Matrix allocate(
    const at::Tensor& like, at::IntArrayRef values, at::IntArrayRef scales, Scaling scaling) {
  const bool mx = scaling == Scaling::mx_row || scaling == Scaling::mx_column;
  return {
      at::empty(values, like.options().dtype(at::kFloat8_e4m3fn)),
      at::empty(scales, like.options().dtype(mx ? at::kByte : at::kFloat)), scaling};
}

}  // namespace

Fp8Matrix encode_rows(const at::Tensor& x, Scaling scaling) {
  const int64_t each = scaling == Scaling::tile     ? kFp8Tile
                       : scaling == Scaling::mx_row ? kMxBlock
                                                    : kTensorCore;
  check(x, "an input", each);
  const int64_t rows = x.size(0), columns = x.size(1);
  std::vector<int64_t> scales{rows};
  if (scaling == Scaling::tile) scales = {columns / each, rows};
  if (scaling == Scaling::mx_row) scales = {rows, columns / each};
  auto result = allocate(x, {rows, columns}, scales, scaling);
  if (x.is_meta()) return result;
  x.is_cuda() ? encode_rows_on_cuda(x.contiguous(), result) : encode_rows_on_cpu(x, result);
  return result;
}

Fp8Matrix encode_columns(const at::Tensor& x, Scaling scaling) {
  check(x, "an input", kTensorCore);
  const int64_t rows = x.size(0), columns = x.size(1);
  const bool tiles = scaling == Scaling::tile;
  const int64_t each = tiles ? kFp8Tile : kMxBlock;
  const int64_t length = padded(rows, each);
  auto result = tiles ? allocate(x, {columns, length}, {length / each, columns}, scaling)
                      : allocate(x, {length, columns}, {length / each, columns}, scaling);
  if (x.is_meta()) return result;
  x.is_cuda() ? encode_columns_on_cuda(x.contiguous(), result) : encode_columns_on_cpu(x, result);
  return result;
}

Fp8Gradient encode_gradient(const at::Tensor& gradient, const at::Tensor& input_scales) {
  check(gradient, "a gradient", kTensorCore);
  const int64_t rows = gradient.size(0), columns = gradient.size(1);
  TORCH_INTERNAL_ASSERT(input_scales.numel() == rows);
  Fp8Gradient result{
      allocate(gradient, {rows, columns}, {rows}, Scaling::row),
      {at::empty(
           {columns, padded(rows, kTensorCore)}, gradient.options().dtype(at::kFloat8_e4m3fn)),
       {},
       Scaling::tensor},
      at::empty({1}, gradient.options().dtype(at::kFloat))};
  if (gradient.is_meta()) return result;
  gradient.is_cuda() ? encode_gradient_on_cuda(gradient.contiguous(), input_scales, result)
                     : encode_gradient_on_cpu(gradient, input_scales, result);
  return result;
}

Fp8Matrix encode_input_again(const at::Tensor& input, const Fp8Gradient& gradient) {
  check(input, "an input", kTensorCore);
  Fp8Matrix result{
      at::empty(
          {input.size(1), padded(input.size(0), kTensorCore)},
          input.options().dtype(at::kFloat8_e4m3fn)),
      gradient.bound, Scaling::tensor};
  if (input.is_meta()) return result;
  input.is_cuda() ? encode_input_again_on_cuda(input.contiguous(), gradient, result)
                  : encode_input_again_on_cpu(input, gradient, result);
  return result;
}

at::Tensor decode(const Fp8Matrix& matrix, c10::ScalarType dtype) {
  const auto& [values, scales, scaling] = matrix;
  auto result = at::empty(values.sizes(), values.options().dtype(dtype));
  if (values.is_meta()) return result;
  if (values.is_cuda()) {
    decode_on_cuda(matrix, result);
    return result;
  }
  const int64_t rows = values.size(0), columns = values.size(1);
  const auto wide = at::empty({rows, columns}, at::kFloat);
  const auto* bytes = static_cast<const uint8_t*>(values.const_data_ptr());
  auto* numbers = wide.mutable_data_ptr<float>();
  const auto* scale32 =
      scales.scalar_type() == at::kFloat ? scales.const_data_ptr<float>() : nullptr;
  const auto* scale8 = scale32 ? nullptr : scales.const_data_ptr<uint8_t>();
  const auto scale_at = [&](int64_t row, int64_t column) {
    switch (scaling) {
      case Scaling::tensor: return scale32[0];
      case Scaling::row: return scale32[row];
      case Scaling::tile: return scale32[column / kFp8Tile * rows + row];
      case Scaling::block:
        return scale32[row / kFp8Tile * (columns / kFp8Tile) + column / kFp8Tile];
      case Scaling::mx_row: return fp8::scale_from(scale8[(row * columns + column) / kMxBlock]);
      case Scaling::mx_column: return fp8::scale_from(scale8[row / kMxBlock * columns + column]);
    }
    return 0.0f;
  };
  const int64_t run = scaling == Scaling::mx_column                           ? 1
                      : scaling == Scaling::mx_row                            ? kMxBlock
                      : scaling == Scaling::tile || scaling == Scaling::block ? kFp8Tile
                                                                              : columns;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < columns; begin += run) {
      const float scale = scale_at(row, begin);
      for (int64_t i = row * columns + begin; i < row * columns + begin + run; ++i) {
        numbers[i] = fp8::decode(bytes[i]) * scale;
      }
    }
  }
  result.copy_(wide);
  return result;
}

}  // namespace sherd
