// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// Which samples a step trains on: a function of its number, so that a run goes on where it was
/// without having to remember anything else, and any number of ranks sees the same.
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

  int64_t steps_per_pass() const { return steps_per_pass_; }
  /// How many samples a step has on all ranks; steps count from 1. The last of a pass may be short.
  int64_t samples_in(int64_t step) const;
  /// Those of one rank in one micro-batch; maybe none.
  std::vector<int64_t> samples(int64_t step, int64_t micro_batch, int64_t rank) const;

 private:
  int64_t shuffled(int64_t pass, int64_t position) const;

  Options options_;
  int64_t per_step_ = 0;
  int64_t steps_per_pass_ = 0;
};

}  // namespace sherd
