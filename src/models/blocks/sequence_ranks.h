// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sherd/comm/mesh.h"
#include "sherd/models/language_model.h"
#include "sherd/nn/exchange.h"

namespace sherd {

/// The ranks that share each sequence with this one (LlamaOptions::mesh). Along `cp` they have
/// chunks of it (Note [Chunks of a sequence]), along `tp` equal parts of these, one after the other
/// (sequence parallelism); where a block computes with its part of the weights, it gathers the rows
/// of all ranks along `tp` before, and scatters the sum of the results.
struct SequenceRanks {
  SequenceRanks() = default;
  /// Opens the exchanges, the first time for a mesh; collective then. Throws for a mesh that
  /// LlamaOptions::mesh does not allow.
  explicit SequenceRanks(const std::optional<Mesh>& mesh);

  /// Returns the number of ranks along an axis.
  int64_t tp() const { return tensor ? tensor->size() : 1; }
  int64_t cp() const { return context ? context->size() : 1; }
  int64_t size() const { return tp() * cp(); }
  /// Returns the exchanges that there are.
  std::vector<Exchange> all() const;
  /// Returns a batch with this rank's part of each sequence.
  Batch part_of(const Batch& whole) const;

  std::optional<Exchange> tensor{};   ///< along `tp`; none: one rank
  std::optional<Exchange> context{};  ///< along `cp`; none: one rank
};

}  // namespace sherd
