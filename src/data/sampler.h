// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// Which samples a step trains on: a function of how many samples the steps before it had, so that
/// a run goes on where it was without having to remember anything else, and any number of ranks
/// sees the same.
class Sampler {
 public:
  struct Options {
    int64_t samples = 0;  ///< in the file
    int64_t batch = 1;    ///< per rank and micro-batch
    int64_t micro_batches = 1;
    int64_t ranks = 1;
    bool shuffle = false;
    uint64_t seed = 0;
  };
  explicit Sampler(const Options& options);

  /// How many samples the step from `position` on has on all ranks: a whole batch, or what is left
  /// of the pass over the file.
  int64_t samples_from(int64_t position) const;
  /// Those of one rank in one micro-batch of it; maybe none.
  std::vector<int64_t> samples(int64_t position, int64_t micro_batch, int64_t rank) const;

 private:
  int64_t shuffled(int64_t pass, int64_t position) const;

  Options options_;
  int64_t per_step_ = 0;
};

}  // namespace sherd
