// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "shard/parameter_shards.h"
#include "shard/weight_change_detector.h"

namespace sherd {

/// Knows whether the main weights were written since they were last published: the model would go
/// on computing with the old ones.
class PublishedWeights {
 public:
  /// `shards` are those of all parameters of the model; they may be filled in until prepare().
  explicit PublishedWeights(const std::vector<ParameterShard>& shards) : shards_(shards) {}
  /// Takes the weights as they are now as published.
  void prepare() {
    std::vector<at::Tensor> weights;
    for (const auto& shard : shards_) {
      if (shard.trainable) weights.push_back(shard.main);
    }
    detector_ = WeightChangeDetector(weights);
    note_published();
  }

  void note_published() { published_ = versions(); }
  /// At the end of the last backward: from here on an optimizer may write behind the version
  /// counters.
  void take_snapshot() { detector_.snapshot(); }
  /// Whether they were written, by their version counters and, with `compare`, by their values
  /// since the snapshot. The comparison blocks the host until the current stream is done.
  bool are_written(bool compare) const {
    return versions() != published_ || (compare && detector_.changed());
  }
  bool is_empty() const { return detector_.is_empty(); }
  int64_t bytes() const { return detector_.bytes(); }

 private:
  int64_t versions() const {
    int64_t sum = 0;
    for (const auto& shard : shards_) {
      if (shard.trainable) sum += shard.main._version();
    }
    return sum;
  }
  const std::vector<ParameterShard>& shards_;
  WeightChangeDetector detector_;
  int64_t published_ = 0;
};

}  // namespace sherd
