// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "forecast/ledger.h"
#include "forecast/memory_probe.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"

namespace sherd {

/// The memory that a run was planned to take and the memory that it takes, by name.
class RunMemory {
 public:
  /// Before anything is allocated.
  explicit RunMemory(const World& world);
  /// Before the first step, when model and optimizer are there: plans what the run will take.
  void plan(const Configuration& configuration, const LanguageModel& model);
  /// After some steps: measures what the fullest rank takes. On a GPU all that the device has taken
  /// is compared with all that was planned; else what Sherd allocates. Collective.
  void compare(const LanguageModel& model, const AdamW& optimizer);

  /// This rank's.
  const Ledger& ledger() const { return ledger_; }
  /// The sums of the entries that were measured, the largest of all ranks.
  int64_t planned_bytes() const { return planned_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  World world_;
  MemoryProbe probe_;
  Ledger ledger_;
  int64_t planned_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

/// Returns lines for the user: what a budget has decided, how symmetric memory is used, and a
/// setting of CUDA that keeps transfers from overlapping.
std::vector<std::string> notes_on_memory(
    const Configuration& configuration, const LanguageModel& model, c10::Device device);

}  // namespace sherd
