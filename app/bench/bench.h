// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "configuration/network_file.h"
#include "forecast/ledger.h"
#include "forecast/rehearse.h"

namespace sherd::app {

/// A benchmark workload.
struct BenchVariant {
  std::string name;
  std::string about;  ///< description
  /// Script of bench/peers that runs the same with FSDP2, and its arguments; empty: there is none.
  std::vector<std::string> peer{};
};

/// Returns the workloads, the reference first.
std::vector<BenchVariant> bench_variants();
/// Returns the workload of a name. Throws, with the known names, for another.
BenchVariant bench_variant(const std::string& name);

/// Options of bench.
struct BenchOptions {
  bool quick = false;           ///< tiny models and short sequences, to try it out
  std::string device = "auto";  ///< "auto", "cpu" or "cuda", as device.kind
  /// Network whose time the collectives take; default: only that of their copies. Not used by the
  /// small-units workloads.
  std::optional<NetworkFile> network{};
  int64_t steps = 10;            ///< number of timed steps
  std::optional<double> load{};  ///< seconds of steps before; default: 10 on a GPU, else 0
  std::function<void(const std::string&)> say{};  ///< reports progress to the user; may be empty
};

/// The result of one workload on this device.
struct BenchResult {
  BenchVariant variant{};
  std::string device{};                ///< name of the device, from the driver
  int64_t ranks = 1;                   ///< number of emulated ranks
  int64_t tokens = 0;                  ///< tokens of one rank in a step
  double load = 0;                     ///< seconds of steps before the timed ones
  double seconds = 0;                  ///< median time of a step
  double exposed = 0;                  ///< seconds of a step in which computing waits
  std::optional<double> host{};        ///< seconds until the host has enqueued a step
  std::vector<RehearsedStep> steps{};  ///< the timed steps
  // Empty for workloads that are not limited by computing.
  std::optional<double> tflops{};  ///< model TFLOP/s of one rank
  std::optional<double> limit{};   ///< TFLOP/s that the device sustains
  // Means while the steps were timed; empty if they can't be measured.
  std::optional<double> watts{};
  std::optional<double> sm_mhz{};
  // Peaks of torch's allocator; empty on CPU.
  std::optional<int64_t> allocated{};
  std::optional<int64_t> reserved{};
  Ledger ledger{};  ///< memory, planned and measured

  std::optional<double> share() const;   ///< `tflops` divided by `limit`
  std::optional<double> joules() const;  ///< energy of one step
};

/// Runs a workload as one rank of an emulated world (see rehearse.h). Its memory is only exact if
/// it is the first workload of the process. Throws for an unknown name, and if losses or gradients
/// are not finite.
BenchResult bench(const std::string& variant, const BenchOptions& options = {});
/// Returns the result as JSON, in bytes and seconds; null for what was not measured.
std::string to_json(const BenchResult& result);

}  // namespace sherd::app
