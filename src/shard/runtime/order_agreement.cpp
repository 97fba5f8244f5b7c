// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/order_agreement.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

namespace sherd {

namespace {

/// The order that OrderAgreement::to_text wrote.
CallOrder parse_order(const std::string& text) {
  CallOrder order;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string what, word;
    CallEvent event;
    words >> what >> word >> event.unit;
    event.enter = what == "enters";
    order.push_back(event);
  }
  return order;
}

}  // namespace

std::string OrderAgreement::to_text(const CallOrder& order) const {
  std::ostringstream out;
  for (const auto& event : order) {
    out << (event.enter ? "enters unit " : "leaves unit ") << event.unit << " ('"
        << units_[event.unit].name() << "')\n";
  }
  return out.str();
}

void OrderAgreement::build(CallOrder order) {
  const auto& options = units_.root().root_options();
  ProgramOptions wanted;
  wanted.prefetch_depth = options.prefetch_depth;
  wanted.micro_batches = state_.planned_micro_batches();
  wanted.memory = options.memory;
  wanted.budget = options.budget;
  wanted.loss = options.loss == Loss::mean ? c10::str("mean over ", units_.loss_divisor(), " ranks")
                : options.loss == Loss::sum ? "sum"
                                            : "per token";
  const auto specs = units_.specs();
  const auto made = [&](const Program* before) {
    auto program =
        Program::build(specs, order, wanted, {.evaluation = evaluation_, .before = before});
    // Those of other calls are recorded anew.
    const bool same_calls = next_ && next_->order() == order;
    return std::make_shared<const Program>(
        same_calls ? program.with_exchanges(next_->exchanges()) : std::move(program));
  };
  TORCH_CHECK(
      graph_.addresses_pinned_by.empty(), "[shard] '", units_.root().name(),
      "' needs another program, but ", graph_.addresses_pinned_by,
      ", which has this one's addresses: run every order of units and set the number of "
      "micro-batches before");
  if (!known_) {
    next_ = made(nullptr);
    return;
  }
  try {
    next_ = made(next_.get());
  } catch (const std::runtime_error&) {
    next_ = made(nullptr);  // other addresses: no graph has the old ones
  }
}

bool OrderAgreement::adopt(
    Pass& pass, const CallTracker& calls, int64_t issued, bool idle, bool has_followed) {
  const auto& expected = pass.program->order(pass.train);
  auto order = without_recomputes(calls.observed());
  const bool first = !known_ && pass.train;
  const auto mine = CallMarks::of(order, calls.made());
  auto record =
      first ? RankRecords::Record::of_first_order() : RankRecords::Record::of_new_order(issued);
  record.new_recomputes = !mine.is_plain();
  order = parse_order(records_.agree_on_order(
      record,
      first ? "calls its units for the first time" : "calls its units in another order than before",
      to_text(order), idle, has_followed));
  known_ = known_ || first;
  // If every rank made all calls outside recomputes, their marks are equal: no exchange is needed.
  const bool alike = !records_.take_new_recomputes();
  const auto now = CallMarks::of(order, calls.made());
  const auto marks = alike ? mine : CallMarks(records_.max_of(now.values()));
  if (pass.train) check_recomputes(order, marks, now);
  order = with_recomputes(std::move(order), marks);
  if (order == expected) return false;
  auto [shorter, new_positions] = without_skipped(order, marks, units_.size());
  if (pass.train) {
    build(std::move(shorter));
  } else {
    // Training goes on in its own order.
    evaluation_ = std::move(shorter);
    build(pass.program->order());
  }
  pass.program = next_;
  pass.new_positions = std::move(new_positions);
  return true;
}

/// Ranks that call a unit call it under a recompute, or none does.
void OrderAgreement::check_recomputes(
    const CallOrder& order, const CallMarks& marks, const CallMarks& mine) const {
  const auto position = marks.contradiction();
  if (!position) return;
  size_t next = 0;
  for (const auto& event : order) {
    if (!event.enter || next++ != *position) continue;
    const bool inside = mine.is_inside(*position);
    records_.refuse(
        inside, mine.is_outside(*position),
        c10::str(
            "calls unit '", units_[event.unit].name(), "' ",
            inside ? "under a recompute" : "outside any recompute"));
  }
}

bool OrderAgreement::adopt_exchanges(const Pass& pass) {
  auto exchanges = exchanges_of_all(pass);
  // Captured addresses, or a newer program, which a later pass records them for.
  const bool fits = graph_.addresses_pinned_by.empty() && pass.program == next_;
  if (!fits || !next_->exchanges().empty()) return false;
  next_ = std::make_shared<const Program>(next_->with_exchanges(std::move(exchanges)));
  return true;
}

/// Ranks speak one after another until each call has what a rank recorded of it: usually one does.
std::vector<CallExchanges> OrderAgreement::exchanges_of_all(const Pass& pass) {
  const auto count = static_cast<size_t>(std::count_if(
      pass.program->order().begin(), pass.program->order().end(),
      [](const CallEvent& event) { return event.enter; }));
  std::vector<CallExchanges> mine(count);
  for (const auto& [position, exchanges] : pass.exchanges) {
    const int32_t known = pass.position_in_program(position);
    if (known != kNone) mine[static_cast<size_t>(known)] = exchanges;
  }
  std::vector<CallExchanges> all(count);
  for (;;) {
    bool adds = false;
    for (size_t i = 0; i < count; ++i) {
      if (!all[i].empty()) mine[i].clear();
      adds = adds || !mine[i].empty();
    }
    const auto said = records_.collect(adds ? write_exchanges(mine) : std::string(), 1);
    if (said.empty()) return all;
    auto heard = read_exchanges(said.front().text);
    for (size_t i = 0; i < std::min(count, heard.size()); ++i) {
      if (all[i].empty()) all[i] = std::move(heard[i]);
    }
  }
}

bool OrderAgreement::adopt_recomputes(const Pass& pass) {
  const auto& known = pass.program->order(/*train=*/true);
  // None of this rank: as the program has them.
  const auto mine =
      pass.new_recomputes.empty() ? CallMarks::none(known) : CallMarks(pass.new_recomputes);
  const CallMarks marks(records_.max_of(mine.values()));
  // Captured addresses, or a newer order of calls: it stays with copies.
  if (!graph_.addresses_pinned_by.empty() || pass.program != next_) return false;
  auto order = with_recomputes(known, marks.joined_with(CallMarks::of_recomputes(known)));
  if (order == known) return false;
  build(std::move(order));
  return true;
}

}  // namespace sherd
