// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace sherd {

/// The gradient of an embedding's weight: row v is the sum of the rows whose token is v, added up
/// in fp32 (fp64 with fp64) in the order of the tokens: the same digits every time.
struct EmbeddingGradient {
  at::Tensor gradient{};  ///< [T, dim], dense, floating point of 16 bits or more
  at::Tensor tokens{};    ///< [T], int64
  at::Tensor target{};    ///< [vocab, dim], dense, of any such dtype
  bool add = false;       ///< to what is there; else rows without a token are 0
};

/// Sorts the tokens, then one pass on the current stream.
void embedding_gradient(const EmbeddingGradient& work);

/// In CUDA memory, with the tokens sorted and the row of each; of the target, only the rows that
/// have a token are written.
void embedding_gradient_on_cuda(
    const EmbeddingGradient& work, const at::Tensor& sorted, const at::Tensor& order);

}  // namespace sherd
