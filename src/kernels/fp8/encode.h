// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sherd {

/// The arrangement of the scales of an fp8 matrix [rows, columns].
enum class Scaling : uint8_t {
  tensor,     ///< one: [1]
  row,        ///< one for each row: [rows]
  tile,       ///< one for 128 neighbours in a row: [columns / 128, rows]
  block,      ///< one for 128 × 128: [rows / 128, columns / 128]
  mx_row,     ///< one of 8 bits for 32 neighbours in a row: [rows, columns / 32]
  mx_column,  ///< one of 8 bits for 32 neighbours in a column: [rows / 32, columns]
};
constexpr int64_t kFp8Tile = 128;
constexpr int64_t kMxBlock = 32;

/// A matrix of numbers in e4m3, each times a scale, which is a power of two (fp8_math.h).
struct Fp8Matrix {
  at::Tensor values;  ///< [rows, columns], dense, Float8_e4m3fn
  at::Tensor scales;  ///< fp32; for the mx scalings bytes (e8m0)
  Scaling scaling{};
};

// Encoders of activations and gradients [T, K] in fp32, bf16 or fp16: one pass on the current
// stream, the same bytes on CPU and CUDA. Scales are those of what they cover: no value saturates,
// and one that is not finite makes all that share its scale NaN. On the meta device they allocate
// what they would allocate elsewhere.

/// Encodes x with scales along its rows: `row`, `tile` or `mx_row`. K is a multiple of 16, 128, 32.
Fp8Matrix encode_rows(const at::Tensor& x, Scaling scaling);

/// Encodes x with scales along its columns. `tile`: transposed, [K, T] with T rounded up to 128;
/// `mx_column`: [T, K] with T rounded up to 32. What is added is zero.
Fp8Matrix encode_columns(const at::Tensor& x, Scaling scaling);

/// A gradient, encoded for both products that it is a factor of. The columns have the same bytes as
/// the rows, transposed; see Note [A scale per token in a sum over tokens] in encode.cpp.
struct Fp8Gradient {
  Fp8Matrix rows;     ///< [T, M], scaling `row`
  Fp8Matrix columns;  ///< [M, T] with T rounded up to 16, without their scales
  at::Tensor bound;   ///< [1]: the largest product of a row's scale and the input's
};
/// Encodes a gradient [T, M]. `input_scales`, [T], are those that encode_rows() has given the
/// product's input, or of anything not smaller.
Fp8Gradient encode_gradient(const at::Tensor& gradient, const at::Tensor& input_scales);

/// Encodes the input [T, K] of a product for its weight's gradient: transposed, [K, T] with T
/// rounded up to 16, each row times the scale of the gradient's row; scaling `tensor`.
Fp8Matrix encode_input_again(const at::Tensor& input, const Fp8Gradient& gradient);

/// Returns the matrix in fp32, or in bf16, which is exact.
at::Tensor decode(const Fp8Matrix& matrix, c10::ScalarType dtype);

/// Rounds up to a multiple.
inline int64_t padded(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// In CUDA memory: the same into tensors that are allocated.
void encode_rows_on_cuda(const at::Tensor& x, const Fp8Matrix& result);
void encode_columns_on_cuda(const at::Tensor& x, const Fp8Matrix& result);
void encode_gradient_on_cuda(
    const at::Tensor& gradient, const at::Tensor& input_scales, const Fp8Gradient& result);
void encode_input_again_on_cuda(
    const at::Tensor& input, const Fp8Gradient& gradient, const Fp8Matrix& result);
void decode_on_cuda(const Fp8Matrix& matrix, const at::Tensor& result);

}  // namespace sherd
