// SPDX-License-Identifier: Apache-2.0
#include "forecast/memory_probe.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "configuration/byte_size.h"
#include "device/device_memory.h"
#include "forecast/rehearsal.h"
#include "forecast/run_costs.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

MemoryProbe::MemoryProbe(c10::Device device) : device_(device) {
  if (const auto memory = device_memory(device_)) context_ = memory->outside();
}

void MemoryProbe::note_communicators(int64_t beside) {
  beside_ = beside;
  if (const auto memory = device_memory(device_)) {
    communicators_ = memory->outside() - context_ - beside_;
  }
}

void MemoryProbe::correct(Ledger& planned) const {
  if (!device_.is_cuda()) return;
  planned.at("CUDA context").planned = context_;
  planned.at("CUDA context").note = "measured at the start";
  planned.at("communicators").planned = communicators_;
  planned.at("communicators").note = "measured when they were created";
}

void MemoryProbe::measure(
    Ledger& ledger, const LanguageModel& model, const AdamW& optimizer) const {
  const auto bytes = allocated_bytes(model);
  const auto state = optimizer.allocated_bytes();
  ledger.at("model weights").measured = bytes.model_weights;
  ledger.at("main weights").measured = bytes.main_weights;
  ledger.at("main gradients").measured = bytes.main_gradients;
  ledger.at("optimizer state").measured = state.moments;
  ledger.at("arena").measured = bytes.arena;
  ledger.at("control").measured = bytes.control + state.control;
  const auto memory = device_memory(device_);
  if (!memory) return;
  const int64_t counted = bytes.sum() + state.sum() - beside_;
  // Between steps, what is allocated beyond our own is what operations keep for themselves.
  const int64_t workspaces = std::max<int64_t>(0, memory->allocated - counted);
  ledger.at("kernel workspaces").measured = workspaces;
  ledger.at("activations").measured = memory->peak_allocated - memory->allocated;
  ledger.at("CUDA context").measured = context_;
  ledger.at("communicators").measured = communicators_;
  ledger.at("kernels and libraries").measured =
      memory->outside() - context_ - communicators_ - beside_;
  ledger.at("allocator's slack").measured = memory->reserved - memory->peak_allocated;
}

std::string advice_on_memory(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target) try {
  const auto ledger_of = [&](const Configuration& changed, int64_t on) {
    return planned_ledger(dry_run(changed, on, target), target, on);
  };
  auto planned = ledger_of(configuration, ranks);
  auto entries = planned.entries;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.planned > b.planned;
  });
  std::string text = c10::str("the plan is ", byte_text(planned.planned()), ": ");
  for (size_t i = 0; i < std::min<size_t>(3, entries.size()); ++i) {
    text += c10::str(i == 0 ? "" : ", ", entries[i].name, " ", byte_text(entries[i].planned));
  }
  std::vector<std::pair<std::string, Configuration>> changes;
  const auto change = [&](const std::string& words, auto edit) {
    auto changed = configuration;
    edit(changed);
    changes.emplace_back(words, std::move(changed));
  };
  change("train.recompute = \"full\"", [](Configuration& one) {
    one.train.recompute = "full";
    one.train.recompute_layers = 0;
  });
  if (ranks > 1) {
    change("shard.strategy = \"optim_grads_params\"", [](Configuration& one) {
      one.shard.strategy = "optim_grads_params";
    });
  }
  if (configuration.data.batch > 1) {
    change(c10::str("data.batch = ", configuration.data.batch / 2), [](Configuration& one) {
      one.data.batch /= 2;
    });
  }
  if (configuration.data.seq > 1) {
    change(c10::str("data.seq = ", configuration.data.seq / 2), [](Configuration& one) {
      one.data.seq /= 2;
    });
  }
  std::string best = c10::str(2 * ranks, " ranks instead of ", ranks);
  int64_t least = ledger_of(configuration, 2 * ranks).planned();
  for (const auto& [words, changed] : changes) {
    const int64_t bytes = ledger_of(changed, ranks).planned();
    if (bytes >= least) continue;
    least = bytes;
    best = words;
  }
  return text + c10::str(
                    ". The change that saves most is ", best, ": ",
                    byte_text(std::max<int64_t>(0, planned.planned() - least)));
} catch (const std::exception&) {
  return "which change would help could not be determined";  // the error itself is what counts
}

}  // namespace sherd
