// SPDX-License-Identifier: Apache-2.0
#include "forecast/budget.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "configuration/axes.h"
#include "configuration/byte_size.h"
#include "device/device_memory.h"
#include "forecast/device_constants.h"
#include "forecast/rehearsal.h"
#include "forecast/run_costs.h"
#include "forecast/time_text.h"

namespace sherd {
namespace {

// Note [How a budget is spent]
// What can be chosen is the same for every budget: each way to recompute the first layers, each
// prefetch depth, each number of units that stay gathered. All choices stand in one fixed order,
// shortest step first, and the first that fits is taken. So of two budgets the smaller one gets no
// shorter step, and either the same choice or one that takes less than what no longer fits.
//
// Activations depend on what is recomputed, the arena on the rest. So a program is built for each
// depth and number of units that stay gathered, and a few passes are rehearsed for each way to
// recompute. With one program and one way the step only gets longer with the layers: the fewest
// that fit come first.

// Note [Activations between two rehearsals]
// Let a pass recompute its first k layers, others their first a < k and b > k. It has its peak in
// one of its first k layers, where it takes as much as that with b, or after them, where it takes
// less than that with a by what layers a to k - 1 keep no more. The larger of the two is enough.

constexpr int64_t kDeepest = 4;
constexpr int64_t kSymmetricPage = 2 * kMiB;  ///< symmetric memory comes in whole ones

/// What stays gathered and what is fetched ahead, and what it leads to.
struct Schedule {
  int64_t depth = 0;
  int64_t keep = 0;
  Program program;
  int64_t arena = 0;
};

/// A way to recompute.
struct Way {
  const char* mode;
  int64_t layers = 0;  ///< the first so many
  int64_t activations = 0;
  Costs costs{};
};

/// A choice, and what it leads to.
struct Choice {
  Configuration configuration;
  int64_t bytes = 0;
  double seconds = 0;
};

/// Its place among all choices. Of equally long steps, one that fetches ahead comes first, then
/// that which recomputes least, then that which takes least. Where nobody knows what transfers
/// take, to wait for each is the last resort.
auto place_of(const Choice& choice, bool network_known) {
  const auto& [train, shard] = std::tie(choice.configuration.train, choice.configuration.shard);
  const bool waits = shard.prefetch == 0;
  const int mode = train.recompute == "none" ? 0 : train.recompute == "selective" ? 1 : 2;
  const auto nanoseconds = std::llround(choice.seconds * 1e9);  // what is less is rounding
  return std::tuple(
      waits && !network_known, nanoseconds, waits, mode, train.recompute_layers, choice.bytes);
}

/// Returns the units that are recomputed with each layer.
std::vector<std::vector<size_t>> layers_of(const Rehearsal& rehearsal) {
  std::vector<std::vector<size_t>> layers;
  for (size_t i = 0; i < rehearsal.operations.size(); ++i) {
    const auto& layer = rehearsal.operations[i].layer;
    if (!layer) continue;
    const auto number = static_cast<size_t>(*layer);
    if (layers.size() <= number) layers.resize(number + 1);
    layers[number].push_back(i);
  }
  return layers;
}

class Search {
 public:
  Search(const Configuration& wanted, int64_t ranks, const PlanOptions& options)
      : wanted_(wanted),
        ranks_(ranks),
        options_(options),
        network_known_(options.network),
        speed_known_(options.times || (options.network && options.network->device.tflops > 0)) {
    target_ = target_of(wanted, options);
    // Without a network or a device's speed, operations alone tell what is longer.
    if (!options_.times && (!options_.network || options_.network->device.tflops == 0)) {
      if (!options_.network) options_.network.emplace();
      options_.network->device.tflops = 1;
      options_.network->device.tflops_fp8 = 0;
    }
  }

  int64_t bytes_of(const Configuration& configuration) const {
    return planned_ledger(rehearse(configuration), target_, ranks_).planned();
  }

  std::optional<Configuration> best(int64_t budget) const {
    const auto plain = rehearse(with("none", 0));
    const int64_t rest =
        planned_ledger(plain, target_, ranks_).planned() - plain.activations - plain.bytes.arena;
    std::vector<std::vector<Way>> modes{{way("none", 0, plain.activations, plain)}};
    for (const char* mode : {"selective", "full"}) modes.push_back(ways_of(mode, plain));
    int64_t least = plain.activations;
    for (const auto& ways : modes) {
      for (const auto& one : ways) least = std::min(least, one.activations);
    }
    std::vector<Choice> choices;
    for (const auto& schedule : schedules_of(plain.program, budget - rest - least)) {
      for (const auto& ways : modes) {
        const auto bytes = [&](const Way& one) { return rest + schedule.arena + one.activations; };
        const auto found = std::find_if(
            ways.begin(), ways.end(), [&](const Way& one) { return bytes(one) <= budget; });
        if (found == ways.end()) continue;
        auto chosen = with(found->mode, found->layers);
        chosen.shard.prefetch = schedule.depth;
        chosen.shard.keep_gathered = schedule.keep;
        choices.push_back(
            {std::move(chosen), bytes(*found), price(schedule.program, found->costs).seconds});
      }
    }
    std::stable_sort(choices.begin(), choices.end(), [&](const Choice& one, const Choice& other) {
      return place_of(one, network_known_) < place_of(other, network_known_);
    });
    // The first does, unless a layer keeps something that its unit is not counted with.
    for (auto& one : choices) {
      if (bytes_of(one.configuration) <= budget) return std::move(one.configuration);
    }
    return std::nullopt;
  }

  /// Everything recomputed, nothing ahead.
  Configuration tightest(const std::string& strategy) const {
    auto tried = with("full", 0);
    tried.shard.prefetch = 0;
    tried.shard.strategy = strategy;
    return tried;
  }
  int64_t smallest(int64_t ranks, const std::string& strategy) const {
    return Search(wanted_, ranks, options_).bytes_of(tightest(strategy));
  }

  /// Inputs that fit with the strategy and ranks of the file: fewer sequences in a pass, and more
  /// passes for as many in a step, or else shorter sequences; with what they cost.
  std::string smaller_inputs(int64_t budget) const {
    const auto plain = tightest(wanted_.shard.strategy);
    const int64_t batch = plain.data.batch, passes = plain.data.micro_batches;
    for (int64_t fewer = batch / 2; fewer >= 1; fewer /= 2) {
      auto tried = plain;
      tried.data.batch = fewer;
      tried.data.micro_batches = passes * batch / fewer;
      if (bytes_of(tried) > budget) continue;
      const bool same = batch % fewer == 0;
      return c10::str(
          " It fits with data.batch = ", fewer, ", data.micro_batches = ", tried.data.micro_batches,
          same ? " (as many sequences a step)" : "", cost_text(tried), ".");
    }
    const int64_t multiple = sequence_multiple_of(plain);
    for (int64_t seq = plain.data.seq / 2; seq >= multiple; seq /= 2) {
      auto tried = plain;
      tried.data.batch = 1;
      tried.data.seq = seq / multiple * multiple;
      if (bytes_of(tried) > budget) continue;
      return c10::str(
          " It fits with data.batch = 1, data.seq = ", tried.data.seq, cost_text(tried), ".");
    }
    return "";
  }

  /// Memory and, if a device's speed is known, time.
  std::string cost_text(const Configuration& configuration) const {
    const auto rehearsal = rehearse(configuration);
    auto text = c10::str(
        ", full recompute and no prefetch: ",
        byte_text(planned_ledger(rehearsal, target_, ranks_).planned()));
    if (!speed_known_) return text;
    const auto costs = costs_of(configuration, rehearsal, ranks_, options_);
    const auto& data = configuration.data;
    const double seconds = price(rehearsal.program, costs.costs).seconds;
    const auto tokens = static_cast<double>(
        data.batch * data.seq * data.micro_batches / sharing_ranks_of(configuration));
    return text + c10::str(
                      " and ", time_text(seconds), " a step (", std::llround(tokens / seconds),
                      " tokens/s per rank)");
  }

  /// What would fit instead.
  std::string remedy(int64_t budget) const {
    const std::string strongest = "optim_grads_params";
    const int64_t least = smallest(ranks_, wanted_.shard.strategy);
    std::string text = c10::str(
        "the least memory that this model needs on ", ranks_, ranks_ == 1 ? " rank" : " ranks",
        " is ", byte_text(least), ", with full recompute and no prefetch.");
    if (wanted_.shard.strategy != strongest && ranks_ > 1) {
      const int64_t sharded = smallest(ranks_, strongest);
      text += c10::str(
          " With shard.strategy = \"", strongest, "\" it is ", byte_text(sharded),
          sharded <= budget ? ", which fits." : ".");
      if (sharded <= budget) return text;
    }
    const auto inputs = smaller_inputs(budget);
    text += inputs;
    for (int64_t ranks = 2 * ranks_; ranks <= 64 * ranks_ && ranks <= 65536; ranks *= 2) {
      const int64_t more = smallest(ranks, strongest);
      if (more > budget) continue;
      return text + c10::str(
                        " It fits on ", ranks, " ranks with shard.strategy = \"", strongest, "\" (",
                        byte_text(more), ").");
    }
    return text + (inputs.empty() ? " Neither more ranks nor smaller inputs (data.batch, data.seq) "
                                    "are enough."
                                  : " More ranks alone do not help.");
  }

 private:
  Rehearsal rehearse(const Configuration& configuration) const {
    return dry_run(configuration, ranks_, target_);
  }

  Configuration with(const char* mode, int64_t layers) const {
    auto result = wanted_;
    result.train.recompute = mode;
    result.train.recompute_layers = layers;
    result.shard.prefetch = 1;
    result.shard.keep_gathered = 0;
    return result;
  }

  Way way(const char* mode, int64_t layers, int64_t activations, const Rehearsal& plain) const {
    return {mode, layers, activations, costs_of(with(mode, layers), plain, ranks_, options_).costs};
  }

  /// By the number of layers, from one on: see Note [Activations between two rehearsals].
  std::vector<Way> ways_of(const char* mode, const Rehearsal& plain) const {
    const auto layers = layers_of(plain);
    const int64_t all = std::ssize(layers);
    std::vector<Way> ways;
    std::optional<Rehearsal> before;
    for (const int64_t last : std::set<int64_t>{1, all / 4, all / 2, 3 * all / 4, all - 1, all}) {
      if (last < 1) continue;
      auto now = rehearse(with(mode, last));
      int64_t less = 0;
      for (int64_t count = std::ssize(ways) + 1; count < last; ++count) {
        for (const size_t unit : layers[static_cast<size_t>(count - 1)]) {
          less += before->saved_activations[unit] - now.saved_activations[unit];
        }
        const int64_t most = std::max(now.activations, before->activations - less);
        ways.push_back(way(mode, count, most, plain));
      }
      ways.push_back(way(mode, last, now.activations, plain));
      before = std::move(now);
    }
    return ways;
  }

  /// But for those whose arena must be larger than `room`: units that stay gathered are there all
  /// at once. The model's own unit comes last and never stays.
  std::vector<Schedule> schedules_of(const Program& plain, int64_t room) const {
    const int64_t all = std::ssize(plain.units()) - 1;
    std::set<int64_t> keeps{0, all};
    for (int64_t keep = 1; keep < all; keep *= 2) keeps.insert(keep);
    std::erase_if(keeps, [&](int64_t keep) {
      int64_t together = 0;
      for (int64_t i = all - keep; i < all; ++i) {
        const int32_t slot = plain.slots_of(static_cast<int32_t>(i)).parameters;
        if (slot != kNone) together += plain.slots()[static_cast<size_t>(slot)].bytes;
      }
      return together > room;
    });
    std::vector<Schedule> result;
    for (int64_t depth = 0; depth <= kDeepest; ++depth) {
      for (const int64_t keep : keeps) {
        auto units = plain.units();
        for (int64_t i = 0; i < all; ++i) {
          units[static_cast<size_t>(i)].keep_gathered = all - i <= keep;
        }
        auto options = plain.options();
        options.prefetch_depth = depth;
        auto program = Program::build(std::move(units), plain.order(), options);
        if (!plain.exchanges().empty()) program = program.with_exchanges(plain.exchanges());
        const int64_t page = wanted_.memory.symmetric ? kSymmetricPage : 1;
        const int64_t arena = (program.bytes().arena + page - 1) / page * page;
        result.push_back({depth, keep, std::move(program), arena});
      }
    }
    return result;
  }

  Configuration wanted_;
  int64_t ranks_;
  PlanOptions options_;
  bool network_known_;
  bool speed_known_;
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
      "[train.budget] memory.budget = \"auto\" means the free memory of a GPU, and this machine "
      "has none: give a number such as \"64GiB\", or a network file with device.memory");
  return memory->total - memory->used;
}

// Note [How the largest inputs are found]
// Each value that is tried costs a dry run. Bytes are almost a straight line over batch and length,
// so the next value is where the line through two of them reaches the budget; every third time, and
// where the line leads nowhere, it is twice the last one, or the middle of what is left.

/// Returns the largest value whose `bytes` are within the budget, to 1/64, at least `least`, whose
/// bytes are.
template <class Bytes>
int64_t largest(int64_t least, int64_t budget, const Bytes& bytes) {
  int64_t low = least, high = std::max(2 * least, int64_t{1} << 25);
  int64_t at_low = bytes(low), next = 2 * low;
  for (int tries = 1; high - low > std::max<int64_t>(1, low / 64); ++tries) {
    const int64_t found = bytes(next);
    const double slope = static_cast<double>(found - at_low) / static_cast<double>(next - low);
    if (found <= budget) {
      low = next;
      at_low = found;
    } else {
      high = next;
    }
    const double room = static_cast<double>(budget - at_low) / std::max(slope, 1e-9);
    const bool leads = tries % 3 != 0 && room < static_cast<double>(high - low);
    const int64_t step = leads ? std::llround(room) : std::min(low, (high - low) / 2);
    const int64_t least_step = std::max<int64_t>(1, low / 64);
    next = std::clamp(low + std::max(step, least_step), low + 1, high - 1);
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
  best->memory.budget = exact_byte_text(budget);
  return *best;
}

Room room_in_budget(const Configuration& configuration, int64_t ranks, const PlanOptions& options) {
  const int64_t budget = budget_of(configuration, options);
  const Search search(configuration, ranks, options);
  const auto bytes_with = [&](auto change, int64_t value) {
    auto tried = configuration;
    change(tried, value);
    return search.bytes_of(tried);
  };
  // Ranks that share sequences need some lengths.
  const int64_t multiple = sequence_multiple_of(configuration);
  const auto whole = [&](int64_t seq) { return seq / multiple * multiple; };
  Room room;
  room.batch = largest(configuration.data.batch, budget, [&](int64_t batch) {
    return bytes_with([](Configuration& tried, int64_t value) { tried.data.batch = value; }, batch);
  });
  room.seq = largest(configuration.data.seq, budget, [&](int64_t seq) {
    return bytes_with(
        [&](Configuration& tried, int64_t value) { tried.data.seq = whole(value); }, seq);
  });
  room.seq = whole(room.seq);
  return room;
}

}  // namespace sherd
