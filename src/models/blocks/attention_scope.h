// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sherd/models/language_model.h"

namespace sherd {

/// What attention sees of a pass besides its input. A value that each call of a layer gets, and no
/// member of the layer: a recompute in the backward needs that of its own micro-batch.
struct AttentionScope {
  at::Tensor documents{};                  ///< Batch::documents; undefined: one per sequence
  KeyValueCache::Layer* cached = nullptr;  ///< of the layer; null: there is no cache
  int64_t begin = 0;                       ///< positions in the cache before this pass
  int64_t capacity = 0;                    ///< positions that the cache can have
};

/// Returns the documents of a batch of B whole sequences of S tokens, or an undefined tensor if
/// each sequence is one. Throws for boundaries that are none.
at::Tensor checked_documents(const at::Tensor& documents, int64_t B, int64_t S);

}  // namespace sherd
