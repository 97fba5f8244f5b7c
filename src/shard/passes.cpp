// SPDX-License-Identifier: Apache-2.0
// The forward: from the boundaries that a model crosses to the program's instructions. And what
// happens when something throws.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <chrono>
#include <sstream>

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

}  // namespace

// ---- forward ------------------------------------------------------------------------------------

UnitCall Runtime::before_forward(Unit& unit) {
  if (replayed_region()) return replay(unit);
  TORCH_CHECK(
      phase_ != Phase::backward, "[shard] unit '", unit.name(),
      "' is called in the backward: wrap what is computed again in sherd::recompute");
  const bool train = c10::GradMode::is_enabled() || recorded_region() != nullptr;
  if (phase_ == Phase::resting) {
    TORCH_CHECK(
        &unit == &root(), "[shard] unit '", unit.name(), "' is called outside its root '",
        root().name(), "': call the root, or shard the unit's module on its own");
    begin_pass(train, /*idle=*/false);
  }
  const int32_t region = region_number();
  const auto ahead = find_ahead(unit);
  UnitCall call;
  if (ahead) {
    run_forward(*ahead);
    const auto& boundary = section_->boundaries[cursor_];
    if (program_->order()[cursor_].recompute != region) deviate();
    if (deviated_) trace_.push_back({unit.number, true, region});
    call.position_ = deviated_ ? entered_++ : boundary.position;
    frames_.push_back({&unit, boundary.position, {}, false});
    ++cursor_;
    run(boundary);
  } else {
    deviate();
    trace_.push_back({unit.number, true, region});
    call.position_ = entered_++;
    frames_.push_back({&unit, kNone, {}, true});
    enter_unforeseen(unit);
  }
  unit.phase = Unit::Phase::forward;
  ++unit.calls;
  if (pass_->train) unit.prepare_nodes();
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
    if (deviated_) {
      trace_.push_back(program_->order()[cursor_]);
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

void Runtime::after_forward(UnitCall& call, std::span<const at::Tensor> outputs) {
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
  if (c10::GradMode::is_enabled() && call.pass_->train) {
    // Before the gradient goes on into the unit, the unit's parameters must be back.
    std::weak_ptr<Runtime> runtime = weak_from_this();
    for (const auto& output : outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      output.register_hook([runtime, call](const at::Tensor&) {
        if (const auto alive = runtime.lock()) alive->before_backward(call);
      });
    }
  }
  if (!call.replayed_ && frames_.empty()) end_pass();
}

void Runtime::begin_pass(bool train, bool idle) {
  for (const auto* unit : units_) {
    TORCH_CHECK(unit, "[shard] a unit of this model was deleted: shard the model anew");
  }
  if (recovering_) recover();
  check_published();
  pass_ = std::make_shared<Pass>(Pass{program_, train});
  const ForwardFlags flags{changed_, train, kept_};
  section_ = &program_->forward(flags);
  agree_on_pass(
      train ? "a forward with gradients" : "a forward without gradients",
      flags.changed | flags.train << 1 | flags.kept << 2);
  cursor_ = 0;
  idle_ = idle;
  deviated_ = false;
  trace_.clear();
  entered_ = 0;
  regions_.clear();
  phase_ = Phase::forward;
}

/// A pass that communicates is one that all ranks make, in the same order: a forward of one rank
/// alone would be taken for what the others do next.
void Runtime::agree_on_pass(const char* what, int64_t flags) {
  const bool communicates = std::any_of(
      section_->instructions.begin(), section_->instructions.end(),
      [](const Instruction& one) { return one.stream != Stream::compute; });
  if (!communicates && verified_) return;
  const int64_t number = ++passes_;
  agreement_->start(
      {Agreement::Kind::pass, step_, static_cast<int64_t>(program_->fingerprint()),
       number << 8 | flags},
      [program = program_, step = step_, number, what] {
        return c10::str(
            "begins ", what, " as pass ", number, " of step ", step + 1, "\n", program->facts());
      });
  // Unknown programs are compared before anything else is sent.
  if (!verified_) agreement_->check(/*block=*/true);
  verified_ = true;
}

void Runtime::end_pass() {
  phase_ = Phase::resting;
  if (changed_) changed_ = false;
  if (pass_->train) kept_ = true;
  look_at_agreement(/*block=*/true);
  if (deviated_ || (!confirmed_ && pass_->train)) settle_order();
  pass_.reset();
}

/// The first training pass tells all ranks the order of the units; so does a pass that went another
/// way than the program.
void Runtime::settle_order() {
  auto order = deviated_ ? trace_ : program_->order();
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
  if (order == program_->order()) return;
  build(std::move(order));
  verified_ = true;
  pass_->program = program_;
}

void Runtime::deviate() {
  if (deviated_) return;
  deviated_ = true;
  const auto& order = program_->order();
  trace_.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(cursor_));
  entered_ = 0;
  for (const auto& visit : trace_) entered_ += visit.enter ? 1 : 0;
}

int32_t Runtime::region_number() {
  const void* region = recorded_region();
  if (!region) return kNone;
  const auto found = std::find(regions_.begin(), regions_.end(), region);
  if (found == regions_.end()) {
    regions_.push_back(region);
    return static_cast<int32_t>(regions_.size()) - 1;
  }
  return static_cast<int32_t>(found - regions_.begin());
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
    if (group->gathers()) {
      frames_.back().buffers.push_back(group->gather_now());
      group->show(frames_.back().buffers.back().mutable_data_ptr());
    } else {
      group->show();
    }
    ++issued_;
  }
  unit.gathered = true;
}

void Runtime::leave_unforeseen(Unit& unit) {
  trace_.push_back({unit.number, false});
  if (unit.calls == 1) unit.hide();  // not within a call of itself
}

// ---- when something throws ----------------------------------------------------------------------

void Runtime::abandon() noexcept {
  if (phase_ == Phase::resting) return;
  if (phase_ == Phase::backward) done_ = 0;  // the step's gradients are incomplete
  phase_ = Phase::resting;
  frames_.clear();
  pass_.reset();
  kept_ = false;
  recovering_ = true;
  for (auto* unit : units_) {
    if (!unit) continue;
    unit->hide();
    unit->phase = Unit::Phase::resting;
    unit->calls = 0;
    unit->collecting = false;
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
  passes_ = 0;
  recovering_ = false;
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
