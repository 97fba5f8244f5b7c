// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kernels/fp8/encode.h"

namespace sherd {

/// The product a · bᵀ of two fp8 matrices whose rows are equally long. Scalings (a and b): `row`
/// and `tensor`, `tensor` twice, `tile` and `block`, `tile` twice; a scaling `tensor` without
/// scales has the scale 1.
struct ScaledProduct {
  Fp8Matrix a;
  Fp8Matrix b;
  at::Tensor out;  ///< [rows of a, rows of b], dense: fp32, or 16 bits
  /// What is added, in out's shape and dtype; may be `out` itself. Undefined: nothing.
  at::Tensor summand{};
  /// CUDA: keeps partial sums in the tensor core's own accumulator, of about 14 bits, instead of
  /// adding them in fp32 every few instructions.
  bool fast = false;
};

/// Computes the product on the current stream; sums are in fp32, rounded once. CPU: decodes and
/// multiplies in fp32. CUDA: cuBLASLt, which needs Hopper or newer; throws what it refuses. No
/// effect on the meta device.
void scaled_product(const ScaledProduct& product);

// In CUDA memory.
void scaled_product_on_cuda(const ScaledProduct& product);
/// Throws, naming `parameter`, unless the device multiplies fp8 matrices.
void check_fp8_device(c10::Device device, const std::string& parameter);

}  // namespace sherd
