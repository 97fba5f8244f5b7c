// SPDX-License-Identifier: Apache-2.0
#include "forecast/search.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "configuration/byte_size.h"
#include "configuration/setup.h"
#include "forecast/scaled_plan.h"
#include "forecast/search_space.h"

namespace sherd {
namespace {

/// So many arrangements for each row are looked at closely.
constexpr int64_t kCompared = 3;

struct Estimated {
  Arrangement arrangement;
  Estimate estimate;
};

bool is_shorter(const Estimated& one, const Estimated& other) {
  return one.estimate.seconds < other.estimate.seconds;
}

bool same_but_for_batch(const Arrangement& one, Arrangement other) {
  other.batch = one.batch;
  other.micro_batches = one.micro_batches;
  return one == other;
}

int64_t memory_of(const Configuration& configuration, const NetworkFile& network) {
  const auto& budget = configuration.memory.budget;
  if (!budget.empty() && budget != "auto") return bytes_from(budget);
  TORCH_CHECK_VALUE(
      network.device.memory > 0,
      "[plan.search] no memory is given that a plan must fit: set memory.budget = \"79GiB\", for "
      "example, or [device] memory in the network file ",
      network.source);
  return network.device.memory;
}

Configuration chosen(
    const Configuration& configuration, const Arrangement& arrangement, const Estimate& estimate) {
  auto result = arranged(configuration, arrangement);
  result.shard.prefetch = estimate.prefetch;
  result.train.recompute = to_text(estimate.recompute);
  result.train.recompute_layers = estimate.recompute_layers;
  return result;
}

class PlanSearch {
 public:
  PlanSearch(const Configuration& configuration, int64_t ranks, const SearchOptions& options)
      : configuration_(configuration),
        ranks_(ranks),
        count_(options.rows),
        planning_{.ranks = ranks, .network = options.network, .device = options.device},
        memory_(memory_of(configuration, options.network)),
        plans_(configuration, ranks, planning_, memory_) {
    result_.memory = memory_;
    result_.seq = configuration.data.seq;
    result_.sequences =
        options.sequences > 0 ? options.sequences : sequences_of_step(configuration, ranks);
    space_ = search_space(configuration, ranks, result_.sequences, options.network.node);
    for (const auto& [reason, count] : space_.refused) result_.refused.push_back({reason, count});
  }

  SearchResult run() {
    auto fitting = all_that_fit();
    const auto best = fitting.begin() + std::min<int64_t>(std::ssize(fitting), kCompared * count_);
    for (auto one = fitting.begin(); one != best; ++one) {
      one->estimate = plans_.close(one->arrangement);
    }
    std::stable_sort(fitting.begin(), best, is_shorter);
    for (const auto& one : fitting) {
      const bool enough = std::ssize(result_.rows) >= count_;
      if (enough || !add_row(one)) count_slower(one.estimate.seconds, enough);
    }
    std::stable_sort(
        result_.rows.begin(), result_.rows.end(), [](const SearchRow& one, const SearchRow& other) {
          return one.plan.seconds < other.plan.seconds;
        });
    TORCH_CHECK_VALUE(!result_.rows.empty(), why_there_are_none());
    return std::move(result_);
  }

 private:
  /// Returns rough estimates of them, the shortest step first.
  std::vector<Estimated> all_that_fit() {
    std::vector<Estimated> result;
    const Arrangement* before = nullptr;
    int64_t resident = 0;
    for (const auto& arrangement : space_.arrangements) {
      if (!before || !same_but_for_batch(*before, arrangement)) {
        resident = plans_.resident(arrangement);
      }
      before = &arrangement;
      if (resident > memory_) {
        count_too_large(arrangement, resident);
        continue;
      }
      const auto estimate = plans_.rough(arrangement);
      if (estimate.fits) {
        result.push_back({arrangement, estimate});
      } else {
        count_too_large(arrangement, estimate.bytes);
      }
    }
    std::stable_sort(result.begin(), result.end(), is_shorter);
    return result;
  }

  /// Plans it. What an estimate counts wrongly is made good by recomputing more; returns false if
  /// nothing helps.
  bool add_row(const Estimated& one) {
    constexpr int kTries = 3;
    auto estimate = one.estimate;
    int64_t correction = 0;
    int64_t planned = 0;
    for (int i = 0; i < kTries && estimate.fits; ++i) {
      auto configuration = chosen(configuration_, one.arrangement, estimate);
      const auto plan = plan_run(configuration, planning_);
      planned = plan.ledger.planned();
      if (planned <= memory_) {
        if (result_.title.empty()) result_.title = plan.title;
        auto settings = changes_of(configuration);
        result_.rows.push_back({std::move(configuration), std::move(settings), in_short(plan)});
        return true;
      }
      // An estimate is without the correction before it, so its whole error counts.
      correction = std::max(correction, planned - estimate.bytes);
      estimate = plans_.close(one.arrangement, correction);
    }
    count_too_large(one.arrangement, estimate.fits ? planned : estimate.bytes + correction);
    return false;
  }

  std::vector<std::pair<std::string, std::string>> changes_of(const Configuration& chosen) const {
    auto keys = chosen_keys(chosen);
    const auto given = chosen_keys(configuration_);
    std::erase_if(keys, [&](const auto& key) {
      return std::find(given.begin(), given.end(), key) != given.end();
    });
    return keys;
  }

  void count_too_large(const Arrangement& arrangement, int64_t bytes) {
    ++result_.too_large;
    if (result_.least_bytes > 0 && result_.least_bytes <= bytes) return;
    result_.least_bytes = bytes;
    result_.smallest = to_text(arrangement);
  }
  void count_slower(double seconds, bool fits) {
    if (!fits) return;
    ++result_.slower;
    if (result_.slower_from == 0) result_.slower_from = seconds;
    result_.slower_to = std::max(result_.slower_to, seconds);
  }

  std::string why_there_are_none() const {
    auto text = c10::str(
        "[plan.search] no arrangement of ", ranks_, " ranks fits ", byte_text(memory_), ". ");
    if (result_.too_large > 0) {
      text += c10::str(
          "The smallest of ", result_.too_large, " needs about ", byte_text(result_.least_bytes),
          ": ", result_.smallest, ". Try more ranks, or fewer sequences or tokens a step. ");
    }
    for (const auto& one : result_.refused) {
      text += c10::str(one.count, " can't be used: ", one.reason, ". ");
    }
    return text;
  }

  Configuration configuration_;
  int64_t ranks_;
  int64_t count_;
  PlanOptions planning_;
  int64_t memory_;
  ScaledPlans plans_;
  SearchSpace space_;
  SearchResult result_;
};

}  // namespace

SearchResult search_plans(const Configuration& configuration, const SearchOptions& options) {
  TORCH_CHECK_VALUE(
      options.network.device.tflops > 0, "[plan.search] the network file ", options.network.source,
      " has no [device] tflops: without a device's speed no step is shorter than another; add it");
  auto wanted = configuration;
  wanted.model = resolved(wanted.model);
  check_keep(wanted);
  const int64_t ranks =
      options.ranks > 0 ? options.ranks : std::max(wanted.device.emulate, wanted.device.ranks);
  return PlanSearch(wanted, ranks, options).run();
}

}  // namespace sherd
