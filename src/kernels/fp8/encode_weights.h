// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "kernels/fp8/encode.h"

namespace sherd {

/// Some elements of a weight with one scale for the whole weight.
struct WeightPiece {
  void* values = nullptr;        ///< e4m3
  const void* source = nullptr;  ///< the main weight
  int64_t count = 0;
  int64_t weight = 0;  ///< index of its scale
};

// Both run on the current stream, and give the same bits on CPU and CUDA. `amaxes` has the bits of
// each weight's largest magnitude (int32), `scales` a number in fp32 for each; main weights are in
// `dtype`: fp32, bf16 or fp16. No effect on the meta device.

/// Raises the weights' amaxes to the largest magnitude of their pieces.
void measure_weights(
    std::span<const WeightPiece> pieces, c10::ScalarType dtype, const at::Tensor& amaxes);
/// Sets all scales to those of their amaxes, and encodes the pieces.
void encode_weights(
    std::span<const WeightPiece> pieces,
    c10::ScalarType dtype,
    const at::Tensor& amaxes,
    const at::Tensor& scales);

/// Whole rows of a weight, in which no block is cut.
struct WeightRows {
  void* values = nullptr;  ///< e4m3
  void* scales = nullptr;  ///< `block`: fp32; mx: bytes
  const void* source = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
};
/// Encodes rows with the scaling `block`, `mx_row` or `mx_column`: rows are multiples of 128 or 32
/// (`mx_row`: any number), columns multiples of 128 or 32.
void encode_weight_rows(
    std::span<const WeightRows> all, c10::ScalarType dtype, Scaling scaling, c10::Device device);

/// A matrix and where it goes when it is transposed.
struct Transposition {
  void* target = nullptr;
  const void* source = nullptr;
  int64_t rows = 0;  ///< of the source
  int64_t columns = 0;
};
/// Transposes dense matrices of elements of 1 or 4 bytes, on the current stream.
void transpose(std::span<const Transposition> all, int64_t element_size, c10::Device device);

// In CUDA memory.
void measure_weights_on_cuda(
    std::span<const WeightPiece> pieces, c10::ScalarType dtype, const at::Tensor& amaxes);
void encode_weights_on_cuda(
    std::span<const WeightPiece> pieces,
    c10::ScalarType dtype,
    const at::Tensor& amaxes,
    const at::Tensor& scales);
void encode_weight_rows_on_cuda(
    std::span<const WeightRows> all, c10::ScalarType dtype, Scaling scaling, c10::Device device);
void transpose_on_cuda(
    std::span<const Transposition> all, int64_t element_size, c10::Device device);

}  // namespace sherd
