// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/runs_table.h"
#include "sherd/kernels/fault.h"

namespace sherd {

/// What is remembered of a tensor that is measured again and again.
struct Watched {
  /// The first of the worst things that were wrong: its moment << 2 | fault. Until somebody zeroes
  /// it.
  int64_t finding = 0;
  double norms = 0;  ///< a running mean
  int64_t count = 0;
};

/// One look at tensors that are watched.
struct Look {
  int64_t moment = 0;      ///< any number, below 2^61
  double exploding = 0;    ///< flag norms above this multiple of the mean; 0 disables
  bool counts = false;     ///< for the mean
  bool overflows = false;  ///< what is not finite is expected, and what explodes is worse
};

/// The sum of squares of each of some tensors, in fp64, always in the same order of addition. A NaN
/// or an infinity shows in the sum; finite values can't overflow it.
///
/// Prepared once for tensors that stay where they are (flat, floating point, on one device), so
/// that a step only launches it.
class Measurement {
 public:
  Measurement() = default;
  explicit Measurement(const std::vector<at::Tensor>& tensors);

  /// One sum per tensor into `sums` (fp64, on the tensors' device), on the current stream.
  void run(const at::Tensor& sums) const;
  /// The same, and what it says about the tensors goes to `watched`, which has one for each.
  void run(double* sums, Watched* watched, const Look& look) const;
  /// Of its tables.
  int64_t bytes() const;

 private:
  friend void measure_on_cuda(
      const Measurement& measurement, double* sums, Watched* watched, const Look& look);
  struct Run {
    const void* values = nullptr;
    int64_t count = 0;
    int32_t dtype = 0;
    int32_t first_chunk = 0;
    int32_t chunks = 0;
  };

  std::vector<at::Tensor> tensors_;
  std::vector<Run> runs_;
  c10::Device device_{c10::kCPU};
  // CUDA
  int64_t chunk_count_ = 0;
  at::Tensor device_runs_;
  at::Tensor device_chunks_;
  at::Tensor partial_;  // a sum per chunk
  at::Tensor arrived_;  // chunks, per tensor; 0 between runs
};

/// As run(), in CUDA memory. Without `watched`, only the sums.
void measure_on_cuda(
    const Measurement& measurement, double* sums, Watched* watched, const Look& look);

}  // namespace sherd
