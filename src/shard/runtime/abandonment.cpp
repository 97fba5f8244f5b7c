// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/abandonment.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "comm/notices.h"
#include "shard/unit/unit.h"

namespace sherd {
namespace {

int64_t next_model_number() {
  static std::atomic<int64_t> next{0};
  return next++;
}

}  // namespace

Abandonment::Abandonment(const World& world, const StepState& state)
    : state_(state),
      notices_(dynamic_cast<HasNotices*>(&world.communicator("control"))),
      // Only models with notices count: others (of an emulated world, of a plan) may be on one
      // rank.
      model_(notices_ ? next_model_number() : 0),
      check_function_([this] { check(); }) {}

void Abandonment::announce(const char* pass, const Unit& root, const Unit* unit) noexcept {
  if (!notices_ || std::exchange(is_reaction_, false)) return;
  try {
    notices_->leave_notice(c10::str(
        model_, ' ', recoveries_, ' ', state_.step(), ' ', state_.passes(), " an exception in ",
        pass, " of '", root.name(), "'", unit ? ", in unit '" + unit->name() + "'" : "",
        ", as pass ", state_.passes(), " of step ", state_.step() + 1));
  } catch (const std::exception&) {
    // Without memory for a text the others wait for as long as an operation may take.
  }
}

void Abandonment::check() {
  if (!notices_ || state_.has_failed()) return;  // then this rank waits for the others to recover
  for (const auto& [rank, text] : notices_->notices()) {
    std::istringstream in(text);
    int64_t model = 0;
    int64_t recoveries = 0;
    int64_t step = 0;
    int64_t pass = 0;
    in >> model >> recoveries >> step >> pass >> std::ws;
    const bool concerns_us = in && model == model_ && recoveries == recoveries_ &&
                             std::tuple(step, pass) <= std::tuple(state_.step(), state_.passes());
    if (!concerns_us) continue;
    std::string what;
    std::getline(in, what);
    is_reaction_ = true;
    TORCH_CHECK(
        false, "[shard] rank ", rank, " has given up what this rank waits for: ", what,
        ". Its own error says why. To go on, all ranks must catch their errors and begin the pass "
        "again, or the step if it was a backward");
  }
}

// A notice that begins with a word is none for check().
void Abandonment::announce_comparison(
    const std::string& line, size_t number, const std::string& words) noexcept {
  if (!notices_) return;
  try {
    notices_->leave_notice(c10::str(
        "compares ", model_, ' ', recoveries_, ' ', state_.step(), ' ', state_.passes(), ' ',
        number, '\n', line, '\n', words));
  } catch (const std::exception&) {
    // As in announce().
  }
}

std::optional<std::pair<int64_t, std::string>> Abandonment::comparison(
    std::span<const int64_t> ranks, const std::string& line, size_t number) const {
  if (!notices_) return std::nullopt;
  for (const auto& [rank, text] : notices_->notices()) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    std::istringstream in(text);
    std::string kind, name, words;
    int64_t model = 0, recoveries = 0, step = 0, pass = 0;
    size_t its_number = 0;
    in >> kind >> model >> recoveries >> step >> pass >> its_number >> std::ws;
    std::getline(in, name);
    std::getline(in, words);
    const bool concerns_us = in && kind == "compares" && model == model_ &&
                             recoveries == recoveries_ && step == state_.step() &&
                             pass == state_.passes() && name == line && its_number <= number;
    if (concerns_us) return std::pair(rank, words);
  }
  return std::nullopt;
}

void Abandonment::note_recovery() {
  ++recoveries_;
  is_reaction_ = false;
}

}  // namespace sherd
