// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/train/configuration.h"
#include "sherd/train/network_file.h"
#include "sherd/train/plan.h"

namespace sherd {

struct RehearseOptions {
  std::vector<int64_t> worlds{8};
  std::optional<NetworkFile> network{};
  int64_t steps = 10;  ///< that are timed
  double load = 0;     ///< seconds of steps before them: a GPU's clock has to settle
  /// Also writes a Chrome trace of one step's kernels there.
  std::string profile{};
  std::function<void(const std::string&)> say{};
};

struct RehearsedStep {
  double seconds = 0;
  double loss = 0;  ///< of this rank, a token
  double gradient_norm = 0;
};

/// One world size, rehearsed.
struct RehearsedWorld {
  RunPlan plan;        ///< with what was measured: its ledger, unit times and timeline
  double seconds = 0;  ///< of a step: the median
  double exposed = 0;
  /// Of a step, until the host has enqueued it; nothing on CPU. Taken with few tokens, so that it
  /// never waits for the device; a graph as it is.
  std::optional<double> host{};
  std::vector<RehearsedStep> steps{};  ///< those that were timed
  // Peaks of the timed steps and those before, in torch's allocator; nothing on CPU.
  std::optional<int64_t> allocated{};
  std::optional<int64_t> reserved{};
  double tokens_per_second = 0;  ///< of one rank
  double tflops = 0;
  UnitTimes times{};
  Timeline real{};  ///< of one step
};

/// Runs the real program with the real kernels on this device, as one rank of a world that isn't
/// there: emulated collectives take the time that the network would. Tokens are random; losses mean
/// nothing.
SHERD_API std::vector<RehearsedWorld> rehearse(
    const Configuration& configuration, const RehearseOptions& options);

}  // namespace sherd
