// SPDX-License-Identifier: Apache-2.0
#include "forecast/search_space.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "configuration/axes.h"
#include "configuration/checks.h"
#include "configuration/parallel_checks.h"
#include "configuration/setup.h"
#include "configuration/to_toml.h"

namespace sherd {
namespace {

/// Longer axes of ranks that share sequences are hardly worth their exchanges.
constexpr int64_t kMostSharing = 16;
/// A larger batch gains nothing any more.
constexpr int64_t kLargestBatch = 64;

/// From the smallest to the largest.
std::vector<int64_t> divisors_of(int64_t number, int64_t most) {
  std::vector<int64_t> result;
  for (int64_t i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) result.push_back(i);
  }
  return result;
}

/// The reason why a run could not have these axes; nothing if it can.
std::string reason_against(const Configuration& configuration, int64_t ranks) {
  std::vector<std::string> problems;
  auto described = configuration;
  described.model.from.reset();  // its keys are those of the folder
  check_together(described, problems);
  if (!problems.empty()) return problems.front();
  try {
    check_axes(configuration, ranks);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

using Strategies = std::pair<Strategy, Strategy>;

/// Those that go together: each alone in one group, pairs in several.
std::vector<Strategies> strategies_of(int64_t ranks, int64_t outer) {
  if (ranks == 1) return {{Strategy::no_shard, Strategy::no_shard}};
  std::vector<Strategies> result;
  constexpr std::array kAll{
      Strategy::no_shard, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params};
  for (const auto inner : kAll) {
    for (const auto between : kAll) {
      if (outer == 1 && between != Strategy::no_shard) continue;
      try {
        Placement(inner, between);
        result.emplace_back(inner, between);
      } catch (const std::invalid_argument&) {
        continue;  // no placement has both
      }
    }
  }
  return result;
}

class SpaceBuilder {
 public:
  SpaceBuilder(const Configuration& configuration, int64_t ranks, int64_t sequences)
      : configuration_(configuration), ranks_(ranks), sequences_(sequences) {}

  void add_axes(Arrangement arrangement) {
    const auto described = arranged(configuration_, arrangement);
    if (const auto reason = reason_against(described, ranks_); !reason.empty()) {
      ++space_.refused[reason];
      return;
    }
    const int64_t loading = data_ranks_of(described, ranks_);
    if (sequences_ % loading != 0) {
      ++space_.refused[c10::str(
          sequences_, " sequences a step can't be divided among ", loading,
          " ranks, or groups of them, with sequences of their own")];
      return;
    }
    for (const auto& [inner, between] : strategies_of(ranks_, arrangement.outer)) {
      arrangement.strategy = inner;
      arrangement.outer_strategy = between;
      for (const int64_t batch : divisors_of(sequences_ / loading, kLargestBatch)) {
        arrangement.batch = batch;
        arrangement.micro_batches = sequences_ / loading / batch;
        space_.arrangements.push_back(arrangement);
      }
    }
  }

  SearchSpace take() { return std::move(space_); }

 private:
  const Configuration& configuration_;
  int64_t ranks_;
  int64_t sequences_;
  SearchSpace space_;
};

}  // namespace

SearchSpace search_space(
    const Configuration& configuration, int64_t ranks, int64_t sequences, int64_t node) {
  SpaceBuilder builder(configuration, ranks, sequences);
  const int64_t most_tp = std::min(node > 0 ? node : ranks, kMostSharing);
  const int64_t most_ep = has_experts(configuration.model) ? configuration.model.experts : 1;
  for (const int64_t tp : divisors_of(ranks, most_tp)) {
    for (const int64_t cp : divisors_of(ranks / tp, kMostSharing)) {
      for (const int64_t outer : divisors_of(ranks / tp / cp, ranks)) {
        // Groups of one rank are one group in which nothing is sharded.
        if (outer > 1 && outer == ranks) continue;
        for (const int64_t ep : divisors_of(ranks / outer, most_ep)) {
          builder.add_axes({.outer = outer, .cp = cp, .tp = tp, .ep = ep});
        }
      }
    }
  }
  return builder.take();
}

Configuration arranged(const Configuration& configuration, const Arrangement& arrangement) {
  auto result = configuration;
  result.memory.budget.clear();
  result.shard.keep_gathered = 0;
  result.shard.outer = arrangement.outer;
  result.shard.strategy = to_text(arrangement.strategy);
  result.shard.outer_strategy = to_text(arrangement.outer_strategy);
  result.parallel = {.cp = arrangement.cp, .tp = arrangement.tp, .ep = arrangement.ep};
  result.data.batch = arrangement.batch;
  result.data.micro_batches = arrangement.micro_batches;
  return result;
}

int64_t sequences_of_step(const Configuration& configuration, int64_t ranks) {
  const auto& data = configuration.data;
  return data.batch * data.micro_batches * data_ranks_of(configuration, ranks);
}

std::vector<std::pair<std::string, std::string>> chosen_keys(const Configuration& configuration) {
  const auto& [data, shard] = std::tie(configuration.data, configuration.shard);
  const auto& [parallel, train] = std::tie(configuration.parallel, configuration.train);
  return {
      {"data.batch", to_toml(data.batch)},
      {"data.micro_batches", to_toml(data.micro_batches)},
      {"shard.strategy", to_toml(shard.strategy)},
      {"shard.outer", to_toml(shard.outer)},
      {"shard.outer_strategy", to_toml(shard.outer_strategy)},
      {"shard.prefetch", to_toml(shard.prefetch)},
      {"shard.keep_gathered", to_toml(shard.keep_gathered)},
      {"parallel.cp", to_toml(parallel.cp)},
      {"parallel.tp", to_toml(parallel.tp)},
      {"parallel.ep", to_toml(parallel.ep)},
      {"memory.budget", to_toml(configuration.memory.budget)},
      {"train.recompute", to_toml(train.recompute)},
      {"train.recompute_layers", to_toml(train.recompute_layers)}};
}

std::string to_text(const Arrangement& arrangement) {
  auto text = to_text(arrangement.strategy);
  if (arrangement.outer > 1) {
    text += c10::str(
        " in ", arrangement.outer, " groups (", to_text(arrangement.outer_strategy),
        " between them)");
  }
  for (const auto& [name, size] :
       {std::pair("cp", arrangement.cp), {"tp", arrangement.tp}, {"ep", arrangement.ep}}) {
    if (size > 1) text += c10::str(", ", name, " ", size);
  }
  return text + c10::str(", batch ", arrangement.batch, " x ", arrangement.micro_batches);
}

}  // namespace sherd
