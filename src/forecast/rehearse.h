// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "configuration/network_file.h"
#include "forecast/plan.h"
#include "sherd/export.h"

namespace sherd {

/// Options of rehearse.
struct RehearseOptions {
  std::vector<int64_t> worlds{8};                 ///< numbers of ranks to rehearse
  std::optional<NetworkFile> network{};           ///< default: emulated collectives only copy
  int64_t steps = 10;                             ///< number of timed steps
  double load = 0;                                ///< seconds of steps before, to settle the clock
  std::string profile{};                          ///< path for a Chrome trace of a step's kernels
  std::function<void(const std::string&)> say{};  ///< reports progress to the user; may be empty
};

/// One timed step.
struct RehearsedStep {
  double seconds = 0;
  double loss = 0;           ///< this rank's loss for each token
  double gradient_norm = 0;  ///< norm over all parameters, before clipping
};

/// The rehearsal of one number of ranks.
struct RehearsedWorld {
  RunPlan plan;        ///< with measured ledger and unit times, and a timeline from these times
  double seconds = 0;  ///< median time of a step
  double exposed = 0;  ///< seconds of a recorded step in which computing waits for collectives
  /// Seconds until the host has enqueued a step; empty on CPU. Measured with few tokens, so that
  /// the host never waits for the device; a CUDA graph as it is.
  std::optional<double> host{};
  std::vector<RehearsedStep> steps{};  ///< the timed steps
  // Peaks of torch's allocator in the timed steps and those before; empty on CPU.
  std::optional<int64_t> allocated{};
  std::optional<int64_t> reserved{};
  double tokens_per_second = 0;  ///< of one rank
  double tflops = 0;             ///< model TFLOP/s of one rank, without recomputation
  UnitTimes times{};             ///< measured times
  Timeline real{};               ///< one measured step
};

/// Runs real steps on this device as one rank of an emulated world: real program and kernels, with
/// collectives that take the time of the given network. Tokens are random, so losses mean nothing.
/// Returns one result for each of options.worlds. Throws for models of kind "vlm", and before it
/// allocates anything if a run's plan needs more memory than the device has free.
SHERD_API std::vector<RehearsedWorld> rehearse(
    const Configuration& configuration, const RehearseOptions& options);

}  // namespace sherd
