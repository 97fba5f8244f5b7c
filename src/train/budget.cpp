// SPDX-License-Identifier: Apache-2.0
#include "train/budget.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "sherd/comm/device_memory.h"
#include "train/byte_size.h"
#include "train/rehearsal.h"
#include "train/run_costs.h"

namespace sherd {
namespace {

// Note [How a budget is spent]
// What a run takes grows with the layers that are not recomputed, with what stays gathered and with
// the prefetch depth. For each way to recompute, the fewest layers that make it fit are found by
// halving; then what is left is offered to deeper prefetch and to units that stay gathered. The
// shortest step wins; of equal ones, that which recomputes least.

/// A choice, and what it leads to.
struct Choice {
  Configuration configuration;
  int64_t bytes = 0;
  double seconds = 0;
};

class Search {
 public:
  Search(const Configuration& wanted, int64_t ranks, const PlanOptions& options)
      : wanted_(wanted), ranks_(ranks), options_(options) {
    target_ = target_of(wanted, options);
    // Without a network or a device's speed, operations alone tell what is longer.
    if (!options_.times && (!options_.network || options_.network->device.tflops == 0)) {
      if (!options_.network) options_.network.emplace();
      options_.network->device.tflops = 1;
    }
  }

  Choice weigh(const Configuration& configuration) const {
    const auto rehearsal = rehearse_on_meta(configuration, ranks_, target_);
    const auto costs = costs_of(configuration, rehearsal, ranks_, options_);
    return {
        configuration, planned_ledger(rehearsal, target_, ranks_).planned(),
        price(rehearsal.program, costs.costs).seconds};
  }

  /// With the fewest layers recomputed in this way that fit.
  std::optional<Choice> least_recompute(const char* mode, int64_t depth, int64_t budget) const {
    auto tried = wanted_;
    tried.shard.prefetch = depth;
    tried.shard.keep_gathered = 0;
    tried.train.recompute = mode;
    tried.train.recompute_layers = 0;
    auto best = weigh(tried);
    if (best.bytes > budget) return std::nullopt;
    if (tried.train.recompute == "none") return best;
    int64_t low = 1;
    int64_t high = wanted_.model.layers;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      tried.train.recompute_layers = middle;
      auto one = weigh(tried);
      if (one.bytes <= budget) {
        best = std::move(one);
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return best;
  }

  /// Deeper prefetch and units that stay gathered, as long as they help and fit.
  Choice spend_rest(Choice best, int64_t budget) const {
    const auto improve = [&](auto change) {
      while (true) {
        auto tried = best.configuration;
        if (!change(tried)) return;
        auto one = weigh(tried);
        if (one.bytes > budget || one.seconds >= best.seconds) return;
        best = std::move(one);
      }
    };
    improve([&](Configuration& tried) { return ++tried.shard.prefetch <= 4; });
    improve([&](Configuration& tried) {
      tried.shard.keep_gathered = std::max<int64_t>(1, 2 * tried.shard.keep_gathered);
      return tried.shard.keep_gathered <= wanted_.model.layers + 1;
    });
    return best;
  }

  std::optional<Choice> best(int64_t budget) const {
    std::optional<Choice> best;
    const auto offer = [&](std::optional<Choice> one) {
      if (!one) return;
      auto spent = spend_rest(std::move(*one), budget);
      // Of equally long steps, the first: it recomputes least.
      if (!best || spent.seconds < best->seconds) best = std::move(spent);
    };
    for (const int64_t depth : {1, 0}) {
      for (const char* mode : {"none", "selective", "full"}) {
        offer(least_recompute(mode, depth, budget));
      }
      if (best) break;  // no prefetch is the last resort
    }
    return best;
  }

  /// Everything recomputed, nothing ahead.
  Choice smallest(int64_t ranks, const std::string& strategy) const {
    auto tried = wanted_;
    tried.train.recompute = "full";
    tried.train.recompute_layers = 0;
    tried.shard.prefetch = 0;
    tried.shard.keep_gathered = 0;
    tried.shard.strategy = strategy;
    return Search(wanted_, ranks, options_).weigh(tried);
  }

  /// What would fit instead.
  std::string remedy(int64_t budget) const {
    const std::string strongest = "optim_grads_params";
    const auto least = smallest(ranks_, wanted_.shard.strategy);
    std::string text = c10::str(
        "the least that this model takes on ", ranks_, ranks_ == 1 ? " rank" : " ranks", " is ",
        byte_text(least.bytes), ", with full recompute and no prefetch.");
    if (wanted_.shard.strategy != strongest) {
      const auto sharded = smallest(ranks_, strongest);
      text += c10::str(
          " With shard.strategy = \"", strongest, "\" it is ", byte_text(sharded.bytes),
          sharded.bytes <= budget ? ", which fits." : ".");
      if (sharded.bytes <= budget) return text;
    }
    for (int64_t ranks = 2 * ranks_; ranks <= 64 * ranks_ && ranks <= 65536; ranks *= 2) {
      const auto more = smallest(ranks, strongest);
      if (more.bytes > budget) continue;
      return text + c10::str(
                        " It fits on ", ranks, " ranks with shard.strategy = \"", strongest, "\" (",
                        byte_text(more.bytes), ").");
    }
    return text +
           " More ranks alone do not help: a shorter data.seq or a smaller data.batch would.";
  }

 private:
  Configuration wanted_;
  int64_t ranks_;
  PlanOptions options_;
  c10::DeviceType target_{};
};

int64_t budget_of(const Configuration& configuration, const PlanOptions& options) {
  const auto& text = configuration.memory.budget;
  if (text != "auto") return bytes_from(text);
  if (options.free_memory > 0) return options.free_memory;
  if (options.network && options.network->device.memory > 0) return options.network->device.memory;
  const auto memory = target_of(configuration, options) == c10::DeviceType::CUDA
                          ? device_memory(c10::Device(c10::kCUDA, 0))
                          : std::nullopt;
  TORCH_CHECK_VALUE(
      memory,
      "[train.budget] memory.budget = \"auto\" is what a GPU has free, and there is none "
      "here: give a number such as \"64GiB\", or a network file that says device.memory");
  return memory->total - memory->used;
}

/// The largest value that fits, at least `least`, which does.
template <class Fits>
int64_t largest(int64_t least, Fits fits) {
  int64_t high = least;
  while (high < (int64_t{1} << 24) && fits(2 * high)) high *= 2;
  int64_t low = high;
  high *= 2;
  while (high - low > std::max<int64_t>(1, low / 64)) {
    const int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

Configuration within_budget(
    const Configuration& configuration, int64_t ranks, const PlanOptions& options) {
  const int64_t budget = budget_of(configuration, options);
  const Search search(configuration, ranks, options);
  auto best = search.best(budget);
  TORCH_CHECK_VALUE(
      best, "[train.budget] memory.budget = \"", configuration.memory.budget, "\" (",
      byte_text(budget), ") is too small: ", search.remedy(budget));
  best->configuration.memory.budget = exact_byte_text(budget);
  return best->configuration;
}

Room room_in_budget(const Configuration& configuration, int64_t ranks, const PlanOptions& options) {
  const int64_t budget = budget_of(configuration, options);
  const Search search(configuration, ranks, options);
  const auto fits = [&](auto change, int64_t value) {
    auto tried = configuration;
    change(tried, value);
    return search.weigh(tried).bytes <= budget;
  };
  Room room;
  room.batch = largest(configuration.data.batch, [&](int64_t batch) {
    return fits([](Configuration& tried, int64_t value) { tried.data.batch = value; }, batch);
  });
  room.seq = largest(configuration.data.seq, [&](int64_t seq) {
    return fits([](Configuration& tried, int64_t value) { tried.data.seq = value; }, seq);
  });
  return room;
}

}  // namespace sherd
