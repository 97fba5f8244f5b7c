// SPDX-License-Identifier: Apache-2.0
// The forward: from the boundaries that a model crosses to the program's instructions. And what
// happens when something throws.
#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "shard/outside_inference.h"
#include "shard/region.h"
#include "shard/runtime.h"

namespace sherd {
namespace {

/// How long ranks are waited for when something happens that the program does not foresee: they all
/// do the same, or it is an error.
constexpr std::chrono::milliseconds kUnforeseen{10'000};

int64_t hash_of(const std::string& text) {
  return static_cast<int64_t>(std::hash<std::string>()(text));
}

/// What lies between two calls of a recompute is part of it, called or not. Recomputes are numbered
/// by the position of their first call.
Order whole_regions(Order order) {
  std::map<int32_t, std::pair<size_t, size_t>> ends;  // of each: its first and last call
  for (size_t i = 0; i < order.size(); ++i) {
    if (!order[i].enter || order[i].recompute == kNone) continue;
    ends.try_emplace(order[i].recompute, i, i).first->second.second = i;
  }
  for (const auto& [number, range] : ends) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(range.first);
    const auto position = static_cast<int32_t>(
        std::count_if(order.begin(), begin, [](const Visit& visit) { return visit.enter; }));
    for (size_t i = range.first; i <= range.second; ++i) {
      if (order[i].enter) order[i].recompute = position;
    }
  }
  return order;
}

}  // namespace

// ---- forward ------------------------------------------------------------------------------------

UnitCall Runtime::before_forward(Unit& unit) {
  notice_failure();
  check_whole();
  if (replayed_region()) return replay(unit);
  TORCH_CHECK(
      phase_ != Phase::backward, "[shard] unit '", unit.name(),
      "' is called in the backward: wrap what is computed again in sherd::recompute");
  const bool train = c10::GradMode::is_enabled() || recorded_region() != nullptr;
  const OutsideInference normal;
  if (phase_ == Phase::resting) {
    TORCH_CHECK(
        &unit == &root(), "[shard] unit '", unit.name(), "' is called outside its root '",
        root().name(), "': call the root, or shard the unit's module on its own");
    begin_pass(train, /*idle=*/false);
  }
  const auto ahead = find_ahead(unit);
  UnitCall call;
  if (ahead) {
    run_forward(*ahead);
    const auto& boundary = section_->boundaries[cursor_];
    const int32_t expected = order()[cursor_].recompute;
    // A pass that keeps nothing for a backward has nothing to compute again.
    const int32_t region = pass_->train ? region_number(expected) : expected;
    if (region != expected) deviate();
    if (deviated_) trace_.push_back({unit.number, true, region});
    call.position_ = deviated_ ? entered_++ : boundary.position;
    frames_.push_back({&unit, boundary.position, {}, false});
    ++cursor_;
    run(boundary);
  } else {
    deviate();
    trace_.push_back({unit.number, true, region_number(kNone)});
    call.position_ = entered_++;
    frames_.push_back({&unit, kNone, {}, true});
    enter_unforeseen(unit);
  }
  unit.enter(Unit::Phase::forward);
  if (pass_->train) {
    unit.prepare_nodes();
    pass_->note_first_node(call.position_);
  }
  call.unit_ = unit.shared_from_this();
  call.pass_ = pass_;
  record_call(call);
  return call;
}

/// Where the unit is entered next, before the end of the call that is under way.
std::optional<size_t> Runtime::find_ahead(const Unit& unit) const {
  const auto& boundaries = section_->boundaries;
  // A call within one that was not foreseen can't have been either.
  if (!frames_.empty() && frames_.back().unforeseen) return std::nullopt;
  const int32_t inside = frames_.empty() ? kNone : frames_.back().position;
  for (size_t i = cursor_; i < boundaries.size(); ++i) {
    const auto& boundary = boundaries[i];
    if (boundary.kind == Boundary::Kind::exit && boundary.position == inside) return std::nullopt;
    if (boundary.kind == Boundary::Kind::enter && boundary.unit == unit.number) return i;
  }
  return std::nullopt;
}

/// Units between here and there are not called on this rank. Others may call them, so what they
/// need of this rank is issued all the same.
void Runtime::run_forward(size_t until) {
  for (; cursor_ < until; ++cursor_) {
    const auto& boundary = section_->boundaries[cursor_];
    if (boundary.kind == Boundary::Kind::enter) {
      skipped_.push_back(deviated_ ? entered_ : boundary.position);
    }
    if (deviated_) {
      trace_.push_back(order()[cursor_]);
      if (trace_.back().enter) ++entered_;
    }
    run(boundary);
    auto& unit = *units_[static_cast<size_t>(boundary.unit)];
    if (boundary.kind == Boundary::Kind::enter) {
      ++unit.calls;
    } else {
      unit.leave();
    }
  }
}

void Pass::note_first_node(int32_t position) {
  const auto index = static_cast<size_t>(position);
  if (first_nodes.size() <= index) first_nodes.resize(index + 1);
  first_nodes[index] = at::sequence_number::peek();
}

// Note [Where a unit's backward begins]
// Before a gradient goes on into the unit, the unit's parameters must be back: a hook on each
// output sees to that. Where the output is a view and is written later (x += positions), autograd
// replaces the view's node and goes on at the node of its base, so the base has the hook as well. A
// tensor that merely passes through was made before the call, or is a leaf: nothing of the unit is
// behind it, and a hook would stay on it and speak of this pass in later ones.
void Runtime::hook_outputs(const UnitCall& call, std::span<const at::Tensor> outputs) {
  const uint64_t first = call.pass_->first_nodes[static_cast<size_t>(call.position_)];
  const std::weak_ptr<Runtime> runtime = weak_from_this();
  const auto hook = [&](const at::Tensor& tensor) {
    const auto& node = tensor.grad_fn();
    if (!node || node->sequence_nr() < first) return;
    tensor.register_hook([runtime, call](const at::Tensor&) {
      if (const auto alive = runtime.lock()) alive->before_backward(call);
    });
  };
  for (const auto& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    hook(output);
    if (output.is_view()) hook(at::Tensor(output._base()));
  }
}

void Runtime::after_forward(UnitCall& call, std::span<const at::Tensor> outputs) {
  const bool hooks = c10::GradMode::is_enabled() && call.pass_->train;
  const OutsideInference normal;
  auto& unit = *call.unit_;
  if (!call.replayed_) {
    TORCH_CHECK(
        phase_ == Phase::forward && !frames_.empty() && frames_.back().unit == &unit,
        "[shard] unit '", unit.name(), "' is left, but it is not the one entered last");
    const auto& frame = frames_.back();
    if (frame.unforeseen) {
      leave_unforeseen(unit);
    } else {
      size_t exit = cursor_;
      while (section_->boundaries[exit].kind != Boundary::Kind::exit ||
             section_->boundaries[exit].position != frame.position) {
        ++exit;
      }
      run_forward(exit);
      if (deviated_) trace_.push_back({unit.number, false});
      run(section_->boundaries[cursor_++]);
    }
    frames_.pop_back();
    unit.leave();
  }
  if (hooks) hook_outputs(call, outputs);
  if (!call.replayed_ && frames_.empty()) end_pass();
}

void Runtime::begin_pass(bool train, bool idle) {
  if (recovering_) recover();
  if (!confirmed_) check_set();  // once is enough
  check_published();
  if (program_ != newest_) use(newest_);
  pass_ = std::make_shared<Pass>(Pass{program_, train, weights_});
  const ForwardFlags flags{changed_, train, kept_};
  section_ = &program_->forward(flags);
  if (recorder_) recorder_->begin_section(section_->name, Section::Kind::forward);
  agree_on_pass(
      train ? "a forward with gradients" : "a forward without gradients",
      flags.changed | flags.train << 1 | flags.kept << 2);
  cursor_ = 0;
  idle_ = idle;
  deviated_ = false;
  trace_.clear();
  entered_ = 0;
  skipped_.clear();
  phase_ = Phase::forward;
}

/// A pass that communicates is one that all ranks make, in the same order: a forward of one rank
/// alone would be taken for what the others do next.
void Runtime::agree_on_pass(const char* what, int64_t flags) {
  if (capturing_) return;  // ranks speak before each replay
  const bool communicates = std::any_of(
      section_->instructions.begin(), section_->instructions.end(),
      [](const Instruction& one) { return one.stream != Stream::compute; });
  if (!communicates && verified_) return;
  const int64_t number = ++passes_;
  const bool news = watch_.has_news();
  agreement_->start(
      {Agreement::Kind::pass, step_,
       static_cast<int64_t>(program_->fingerprint() ^ std::hash<std::vector<bool>>()(frozen_)),
       number << 8 | flags, news},
      [this, program = program_, step = step_, number, what, frozen = frozen_] {
        return c10::str(
            "begins ", what, " as pass ", number, " of step ", step + 1,
            "\nfrozen since sharding: ", frozen_text(frozen), "\n", program->facts());
      });
  // Unknown programs are compared before anything else is sent.
  if (!verified_) agreement_->check(/*block=*/true);
  verified_ = true;
}

void Runtime::end_pass() {
  phase_ = Phase::resting;
  regions_.clear();  // they hold units, which hold this
  if (changed_) changed_ = false;
  if (pass_->train) kept_ = true;
  look_at_agreement(/*block=*/true);
  report_due_ = agreement_->take_news() || report_due_;
  if (deviated_ || (!confirmed_ && pass_->train)) settle_order();
  pass_.reset();
}

/// The first training pass tells all ranks the order of the units; so does a pass that went another
/// way than the program.
void Runtime::settle_order() {
  auto order = deviated_ ? whole_regions(trace_) : this->order();
  if (!confirmed_ && pass_->train) {
    order = order_from(agreement_->agree_on_order(order_text(order), idle_));
    confirmed_ = true;
  } else {
    const auto text = order_text(order);
    agreement_->start({Agreement::Kind::unforeseen, issued_, hash_of(text), 0}, [text] {
      return "calls its units in another order than before\n" + text;
    });
    agreement_->check(/*block=*/true, kUnforeseen);
  }
  if (order == this->order()) return;
  auto [shorter, moved] = without_skipped(order);
  shorter = whole_regions(std::move(shorter));
  if (pass_->train) {
    build(std::move(shorter));
  } else {
    // Training goes on in its own order.
    evaluation_ = std::move(shorter);
    build(program_->order());
  }
  verified_ = true;
  pass_->program = program_;
  pass_->moved = std::move(moved);
}

/// A visit that no rank made, of a unit that is called elsewhere, is where the order used to have
/// it: it is dropped. Returns too where each position has gone. Collective.
std::pair<Order, std::vector<int32_t>> Runtime::without_skipped(const Order& order) {
  std::string mine;  // of a rank without data: nothing, which is all skipped
  if (!idle_) {
    mine.assign(order.size(), '0');
    for (const int32_t position : skipped_) mine[static_cast<size_t>(position)] = '1';
  }
  const auto all = agreement_->exchange(mine);
  const auto is_made = [&](size_t position) {
    return std::any_of(all.begin(), all.end(), [&](const std::string& skipped) {
      return !skipped.empty() && skipped[position] == '0';
    });
  };
  std::vector<bool> called(units_.size());
  size_t position = 0;
  for (const auto& visit : order) {
    if (visit.enter && is_made(position++)) called[static_cast<size_t>(visit.unit)] = true;
  }
  Order result;
  std::vector<int32_t> moved;
  std::vector<bool> kept;  // of the visits that are open
  int32_t next = 0;
  for (const auto& visit : order) {
    if (visit.enter) {
      kept.push_back(is_made(moved.size()) || !called[static_cast<size_t>(visit.unit)]);
      moved.push_back(kept.back() ? next++ : kNone);
    }
    if (kept.back()) result.push_back(visit);
    if (!visit.enter) kept.pop_back();
  }
  return {std::move(result), std::move(moved)};
}

void Runtime::deviate() {
  if (deviated_) return;
  deviated_ = true;
  const auto& known = order();
  trace_.assign(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(cursor_));
  entered_ = 0;
  for (const auto& visit : trace_) entered_ += visit.enter ? 1 : 0;
}

/// The number of the recompute that this thread is in: the program's, where it expects one here
/// that has not been seen yet.
int32_t Runtime::region_number(int32_t expected) {
  auto region = recorded_region();
  if (!region) return kNone;
  bool taken = false;
  for (const auto& [known, number] : regions_) {
    if (known == region) return number;
    taken = taken || number == expected;
  }
  constexpr int32_t kNew = 1 << 24;  // beyond all positions; whole_regions() numbers them anew
  const bool as_expected = expected != kNone && !taken;
  const auto number = as_expected ? expected : kNew + static_cast<int32_t>(regions_.size());
  regions_.emplace_back(std::move(region), number);
  return number;
}

/// A unit that the program does not expect here is gathered on the spot, into memory of its own:
/// its slot may be another's at this time. All ranks do so, or it is an error.
void Runtime::enter_unforeseen(Unit& unit) {
  agreement_->check(/*block=*/true);
  const auto words =
      c10::str("calls unit '", unit.name(), "' where the program does not expect it");
  agreement_->start(
      {Agreement::Kind::unforeseen, issued_, hash_of(unit.name()), 0}, [words] { return words; });
  agreement_->check(/*block=*/true, kUnforeseen);
  lanes_->finish();
  for (const auto& group : unit.groups()) {
    if (changed_ && group->refreshes()) group->refresh_now();
    if (group->gathers()) frames_.back().buffers.push_back(group->gather_now());
    ++issued_;
  }
  show(frames_.back());
}

void Runtime::leave_unforeseen(Unit& unit) {
  trace_.push_back({unit.number, false});
  if (unit.calls == 1) return unit.hide(/*keeps_memory=*/true);  // maybe of a gather ahead
  // Within a call of itself: the outer one goes on with what it had.
  for (auto frame = frames_.rbegin() + 1; frame != frames_.rend(); ++frame) {
    if (frame->unit == &unit) return show(*frame);
  }
}

void Runtime::show(const Frame& frame) {
  auto buffer = frame.buffers.begin();
  for (const auto& group : frame.unit->groups()) {
    if (frame.unforeseen && group->gathers()) {
      group->show((buffer++)->mutable_data_ptr());
    } else {
      group->show();
    }
  }
  frame.unit->gathered = true;
}

// ---- when something throws ----------------------------------------------------------------------

void Runtime::abandon() noexcept {
  if (backward_) backward_->over = true;
  if (phase_ == Phase::resting) return;
  if (phase_ == Phase::backward && trains_) {
    done_ = 0;  // the step's gradients are incomplete
    spoilt_ = true;
  }
  phase_ = Phase::resting;
  frames_.clear();
  pass_.reset();
  regions_.clear();
  kept_ = false;
  recovering_ = true;
  for (auto* unit : units_) {
    if (!unit) continue;
    unit->hide(/*keeps_memory=*/true);  // a gather may still write there
    unit->rest();
    for (const auto& group : unit->groups()) group->drop_pending();
  }
}

/// After an exception all ranks must have issued the same collectives, or the next ones would be
/// taken for each other.
void Runtime::recover() {
  agreement_->check(/*block=*/true, kUnforeseen);
  agreement_->start({Agreement::Kind::recovery, issued_, done_, 0}, [issued = issued_, this] {
    return c10::str(
        "goes on after an exception in '", root().name(), "', with ", issued,
        " collectives behind it");
  });
  agreement_->check(/*block=*/true, kUnforeseen);
  lanes_->finish();
  for (auto* unit : units_) unit->hide();
  while (!reducing_.empty()) drop_gradients();
  // What the failed pass gave to compute comes before what the next one gathers.
  lanes_->signal(published());
  if (spoilt_) watch_.forget(step_ + 1);
  report_due_ = agreement_->take_news() || report_due_;
  passes_ = 0;
  recovering_ = spoilt_ = false;
}

// ---- orders in words ----------------------------------------------------------------------------

std::string Runtime::order_text(const Order& order) const {
  std::ostringstream out;
  for (const auto& [unit, enter, recompute] : order) {
    out << (enter ? "enters unit " : "leaves unit ") << unit;
    if (recompute != kNone) out << " in recompute " << recompute;
    out << " ('" << units_[static_cast<size_t>(unit)]->name() << "')\n";
  }
  return out.str();
}

Order Runtime::order_from(const std::string& text) const {
  Order order;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string what, word;
    Visit visit;
    words >> what >> word >> visit.unit >> word;
    if (word == "in") words >> word >> visit.recompute;
    visit.enter = what == "enters";
    order.push_back(visit);
  }
  return order;
}

}  // namespace sherd
