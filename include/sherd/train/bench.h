// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/train/ledger.h"
#include "sherd/train/network_file.h"
#include "sherd/train/rehearse.h"

namespace sherd {

/// A workload that speeds are compared on.
struct BenchVariant {
  std::string name;
  std::string about;
  /// What bench/peers/fsdp2.py is told to run the same; empty: FSDP2 has nothing like it.
  std::vector<std::string> peer{};
};

/// Those that this build can run, the reference first.
SHERD_API std::vector<BenchVariant> bench_variants();
/// The one of a name; throws with the names that there are.
SHERD_API BenchVariant bench_variant(const std::string& name);

struct BenchOptions {
  bool quick = false;                    ///< tiny models and short sequences, to try it out
  std::string device = "auto";           ///< as device.kind
  std::optional<NetworkFile> network{};  ///< else collectives cost what emulating them does
  int64_t steps = 10;                    ///< that are timed
  std::optional<double> load{};  ///< seconds of steps before them; else 10 on a GPU, 0 on CPU
  std::function<void(const std::string&)> say{};
};

/// What one variant did on this device.
struct SHERD_API BenchResult {
  BenchVariant variant{};
  std::string device{};  ///< as the driver calls it
  int64_t ranks = 1;
  int64_t tokens = 0;  ///< of a rank and step
  double load = 0;
  double seconds = 0;                  ///< of a step: the median
  double exposed = 0;                  ///< of them, standing still for collectives
  std::optional<double> host{};        ///< of them, until the host has enqueued all of it
  std::vector<RehearsedStep> steps{};  ///< those that were timed
  // Nothing where computing is not what takes the time.
  std::optional<double> tflops{};
  std::optional<double> limit{};  ///< TFLOP/s that the device sustains
  // While the steps were timed; nothing where nobody measures it.
  std::optional<double> watts{};
  std::optional<double> sm_mhz{};
  // Peaks in torch's allocator; nothing on CPU.
  std::optional<int64_t> allocated{};
  std::optional<int64_t> reserved{};
  Ledger ledger{};

  std::optional<double> share() const;   ///< of the limit
  std::optional<double> joules() const;  ///< of a step
};

/// Runs a variant as one rank of a world that isn't there (see rehearse.h). For its memory to be
/// told exactly, it is the first that a process runs.
SHERD_API BenchResult bench(const std::string& variant, const BenchOptions& options = {});
/// In bytes and seconds; null where something was not measured.
SHERD_API std::string to_json(const BenchResult& result);

}  // namespace sherd
