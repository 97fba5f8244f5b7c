// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/price.h"
#include "sherd/plan/program.h"
#include "sherd/train/configuration.h"
#include "sherd/train/ledger.h"
#include "sherd/train/network_file.h"

namespace sherd {

/// Seconds of a run's units, as a rehearsal or a run measured them; a JSON file.
struct UnitTimes {
  std::vector<std::pair<std::string, UnitTime>> units;  ///< by name; of one call
  double update = 0;
};
SHERD_API UnitTimes read_unit_times(const std::string& path);
SHERD_API std::string to_json(const UnitTimes& times);

struct PlanOptions {
  int64_t ranks = 0;  ///< 0: those that the configuration emulates or starts
  std::optional<NetworkFile> network{};
  std::optional<UnitTimes> times{};
  std::vector<int64_t> worlds{};  ///< also planned, each in short
  std::string device{};     ///< "cuda" or "cpu"; empty: cuda, unless the run is meant for CPUs
  int64_t free_memory = 0;  ///< bytes that memory.budget = "auto" stands for, if somebody knows
};

/// Collectives of a step over one axis.
struct AxisTraffic {
  std::string axis;
  std::string collective;
  int64_t calls = 0;
  int64_t bytes = 0;   ///< of the full sides
  int64_t wire = 0;    ///< that this rank sends
  double seconds = 0;  ///< on the network, if one is given
};

/// What a run needs in a world of one size.
struct WorldPlan {
  int64_t ranks = 0;
  int64_t bytes = 0;
  double seconds = 0;  ///< of a step; 0 where no times are known
  double exposed = 0;
  double tokens_per_second = 0;  ///< of one rank
};

/// What a run will do, known before it starts: memory by name, traffic, the program and, where
/// times are known, when everything happens.
struct SHERD_API RunPlan {
  std::string title{};
  std::vector<std::pair<std::string, std::string>> facts{};
  Configuration configuration{};  ///< with all that was worked out
  int64_t ranks = 1;
  std::string device{};
  Program program;
  Ledger ledger{};
  std::vector<int64_t> kept{};  ///< by unit: activations that its forward leaves behind
  std::vector<AxisTraffic> traffic{};
  std::vector<UnitTime> times{};  ///< by unit; empty where nobody knows
  std::string times_from{};
  std::optional<Timeline> timeline{};
  double tokens_per_second = 0;  ///< of one rank
  std::vector<WorldPlan> worlds{};

  /// For people.
  std::string to_text() const;
  std::string to_json(bool with_program = false) const;
  /// One self-contained page.
  std::string to_html() const;
};

/// Without a device, and without reading any data. Throws what a run would throw for the
/// configuration. With memory.budget the choices are made first (see budget.h).
SHERD_API RunPlan plan_run(const Configuration& configuration, const PlanOptions& options = {});

/// Line by line, what differs between two runs' plans.
SHERD_API std::string difference(const RunPlan& one, const RunPlan& other);

}  // namespace sherd
