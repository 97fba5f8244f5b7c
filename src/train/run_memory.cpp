// SPDX-License-Identifier: Apache-2.0
#include "train/run_memory.h"

#include <cstdlib>

#include "data/across_ranks.h"
#include "device/device_memory.h"
#include "forecast/rehearsal.h"
#include "forecast/run_costs.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {

RunMemory::RunMemory(const World& world) : world_(world), probe_(world.device()) {}

void RunMemory::plan(const Configuration& configuration, const LanguageModel& model) {
  probe_.note_communicators(configuration.memory.symmetric ? allocated_bytes(model).arena : 0);
  const auto target = world_.device().type();
  ledger_ = planned_ledger(
      dry_run(configuration, world_.size(), target, world_.rank()), target, world_.size());
  probe_.correct(ledger_);
  restart_memory_peaks(world_.device());
}

void RunMemory::compare(const LanguageModel& model, const AdamW& optimizer) {
  probe_.measure(ledger_, model, optimizer);
  int64_t planned = 0;
  int64_t found = 0;
  for (const auto& entry : ledger_.entries) {
    if (!entry.measured) continue;
    planned += entry.planned;
    found += *entry.measured;
  }
  const auto largest = largest_of_ranks(world_, {planned, found});
  planned_bytes_ = largest[0];
  peak_bytes_ = largest[1];
}

std::vector<std::string> notes_on_memory(
    const Configuration& configuration, const LanguageModel& model, c10::Device device) {
  std::vector<std::string> result;
  if (!configuration.memory.budget.empty()) {
    result.push_back(
        "memory.budget = " + configuration.memory.budget + ": train.recompute = \"" +
        configuration.train.recompute + "\", " +
        std::to_string(configuration.train.recompute_layers) +
        " layers (0: all), shard.prefetch = " + std::to_string(configuration.shard.prefetch) +
        ", shard.keep_gathered = " + std::to_string(configuration.shard.keep_gathered));
  }
  if (const auto text = symmetric_report(model); !text.empty()) {
    result.push_back("symmetric memory: " + text);
  }
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (device.is_cuda() && connections && std::string(connections) == "1") {
    result.push_back(
        "CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one queue, so nothing will overlap; "
        "unset it");
  }
  return result;
}

}  // namespace sherd
