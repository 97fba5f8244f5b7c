// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "configuration/configuration.h"
#include "configuration/network_file.h"
#include "forecast/ledger.h"
#include "plan/price.h"
#include "sherd/export.h"
#include "sherd/plan/program.h"

namespace sherd {

/// The measured times of a model's units, as `sherd rehearse --times` writes them.
struct UnitTimes {
  std::vector<std::pair<std::string, UnitTime>> units;  ///< unit name, seconds of one call
  double update = 0;                                    ///< seconds of the optimizer's step
};
/// Reads a JSON file of unit times. Throws if it is not one.
SHERD_API UnitTimes read_unit_times(const std::string& path);
/// Returns the contents of such a file.
SHERD_API std::string to_json(const UnitTimes& times);

/// Options of plan_run.
struct PlanOptions {
  /// Number of ranks; 0: the larger of device.emulate and device.ranks.
  int64_t ranks = 0;
  std::optional<NetworkFile> network{};  ///< default: transfers take no time
  /// Measured times. Default: estimated from the operations and the network file's device, if that
  /// has a speed; otherwise the plan has no times.
  std::optional<UnitTimes> times{};
  std::vector<int64_t> worlds{};  ///< further numbers of ranks, for RunPlan::worlds
  std::string device{};           ///< "cuda" or "cpu"; empty: cuda, unless the run is for CPUs
  /// Bytes for memory.budget = "auto"; 0: the memory of the network file's device, or else what
  /// this machine's GPU has free.
  int64_t free_memory = 0;
};

/// The collectives, or the exchanges of activations, of one kind in a step over one axis.
struct AxisTraffic {
  std::string axis;        ///< mesh axis
  std::string collective;  ///< kind of collective or exchange
  int64_t calls = 0;       ///< number of collectives
  int64_t bytes = 0;       ///< bytes of the full sides
  int64_t wire = 0;        ///< bytes that this rank sends
  double seconds = 0;      ///< time on the network; 0 without one
};

/// The needs of a run with one number of ranks.
struct WorldPlan {
  int64_t ranks = 0;
  int64_t bytes = 0;             ///< memory of a rank
  double seconds = 0;            ///< time of a step; 0 if no times are known
  double exposed = 0;            ///< seconds of a step in which computing waits for collectives
  double tokens_per_second = 0;  ///< of one rank
};

/// The plan of a run, made before it starts: memory by name, traffic, the program and, if times are
/// known, the timeline of a step.
struct SHERD_API RunPlan {
  std::string title{};
  std::vector<std::pair<std::string, std::string>> facts{};  ///< main settings, as text
  Configuration configuration{};                             ///< with derived and chosen values
  int64_t ranks = 1;                                         ///< number of ranks
  std::string device{};                                      ///< "cuda" or "cpu"
  Program program;
  Ledger ledger{};  ///< memory of a rank
  /// By unit, without those inside it: bytes left for the backward.
  std::vector<int64_t> saved_activations{};
  std::vector<AxisTraffic> traffic{};  ///< collectives of a step
  std::vector<UnitTime> times{};       ///< by unit; empty if unknown
  std::string times_from{};            ///< source of the times; empty if unknown
  std::optional<Timeline> timeline{};  ///< a step; empty if no times are known
  double tokens_per_second = 0;        ///< of one rank
  double flops_per_token = 0;          ///< model operations, without recomputation
  double device_tflops = 0;            ///< speed of the network file's device; 0: unknown
  /// Memory of the device that a rank has: the network file's, or else this machine's GPU. 0:
  /// unknown.
  int64_t device_memory = 0;
  std::vector<WorldPlan> worlds{};  ///< PlanOptions::worlds

  /// Returns the plan as text.
  std::string to_text() const;
  /// Returns the plan as JSON, with the program's text if asked for.
  std::string to_json(bool with_program = false) const;
  /// Returns the plan as one self-contained HTML page.
  std::string to_html() const;
};

/// Plans a run on the meta device: needs no GPU (except perhaps for memory.budget = "auto") and
/// reads no data. With a budget it first chooses prefetch depth, keep_gathered units and
/// recomputation for the shortest step that fits. Throws what the run would throw for this
/// configuration, and if nothing fits the budget.
SHERD_API RunPlan plan_run(const Configuration& configuration, const PlanOptions& options = {});

/// Returns a plan in short.
WorldPlan in_short(const RunPlan& plan);

/// Returns the differences of two plans as text, one a line.
SHERD_API std::string difference(const RunPlan& one, const RunPlan& other);

}  // namespace sherd
