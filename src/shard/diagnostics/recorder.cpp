// SPDX-License-Identifier: Apache-2.0
#include "shard/diagnostics/recorder.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "shard/runtime/runtime.h"

namespace sherd {

Recorder::Recorder(c10::Device device, std::function<int64_t()> live)
    : device_(device), live_(std::move(live)) {}

Recorder::Moment Recorder::now(Communicator::OnStream stream) const {
  Moment moment;
  if (!device_.is_cuda()) {
    moment.time = Clock::now();
    return moment;
  }
  moment.event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // one that has a time
  moment.event->record(
      stream ? *stream : c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return moment;
}

double Recorder::seconds(const Moment& from, const Moment& to) const {
  if (from.event && to.event) return from.event->elapsedTime(*to.event) / 1e3;
  return std::chrono::duration<double>(to.time - from.time).count();
}

void Recorder::begin_section(const std::string& name, Section::Kind kind) {
  sections_.push_back(name);
  kinds_.push_back(kind);
}

size_t Recorder::begin(const Instruction& instruction, Communicator::OnStream stream) {
  auto& entry = entries_.emplace_back();
  entry.stream = instruction.stream;
  entry.action = instruction.action;
  entry.axis = instruction.axis;
  entry.unit = instruction.unit;
  entry.group = instruction.group;
  entry.bytes = instruction.bytes;
  entry.section = static_cast<int32_t>(sections_.size()) - 1;
  if (live_) entry.live = live_();
  entry.begin = now(stream);
  return entries_.size() - 1;
}

size_t Recorder::begin_exchange(ExchangeKind kind, int32_t unit, int64_t bytes) {
  const auto number = begin(
      {.action = Action::compute, .stream = Stream::compute, .unit = unit, .bytes = bytes}, {});
  entries_[number].exchange = kind;
  return number;
}

void Recorder::end(size_t number, Communicator::OnStream stream) {
  entries_[number].end = now(stream);
  entries_[number].ended = true;
}

StepRecord Recorder::record(const Program& program) const {
  StepRecord result;
  result.timeline.sections = sections_;
  const auto units = program.units().size();
  result.units.resize(units);
  result.saved_activations.assign(units, 0);
  result.timeline.exposed.assign(units, 0);
  if (entries_.empty()) return result;
  const auto& start = entries_.front().begin;
  for (const auto& entry : entries_) {
    if (!entry.ended || (entry.action == Action::compute && !entry.exchange)) continue;
    const double begin = seconds(start, entry.begin);
    const double end = seconds(start, entry.end);
    result.timeline.spans.push_back(
        {entry.stream, entry.action, entry.axis, entry.unit, entry.group, entry.section, begin, end,
         entry.bytes, entry.exchange});
    result.timeline.seconds = std::max(result.timeline.seconds, end);
    const bool waits = entry.stream == Stream::compute && entry.action != Action::update;
    if (waits && entry.unit != kNone) {
      result.timeline.exposed[static_cast<size_t>(entry.unit)] += end - begin;
    }
    if (entry.action == Action::update) result.update += end - begin;
  }
  add_computing(program, result);
  const auto count = [&](Section::Kind kind) {
    return static_cast<double>(
        std::max<std::ptrdiff_t>(1, std::count(kinds_.begin(), kinds_.end(), kind)));
  };
  std::vector<double> calls(units, 0);
  for (const auto& visit : program.order()) calls[static_cast<size_t>(visit.unit)] += visit.enter;
  for (size_t unit = 0; unit < units; ++unit) {
    const double called = std::max(1.0, calls[unit]);
    result.units[unit].forward /= count(Section::Kind::forward) * called;
    result.units[unit].backward /= count(Section::Kind::backward) * called;
  }
  result.update /= count(Section::Kind::update);
  return result;
}

/// Between two instructions of the compute stream computes whichever unit is innermost there.
void Recorder::add_computing(const Program&, StepRecord& result) const {
  struct Open {
    int32_t unit = kNone;
    int64_t live = 0;
  };
  std::vector<Open> inside;
  const Entry* before = nullptr;
  const auto& start = entries_.front().begin;
  for (const auto& entry : entries_) {
    if (entry.stream != Stream::compute || !entry.ended) continue;
    const bool same = before && before->section == entry.section;
    if (!same) inside.clear();
    const auto kind = kinds_[static_cast<size_t>(entry.section)];
    if (same && !inside.empty() && kind != Section::Kind::update) {
      const double begin = seconds(start, before->end);
      const double end = seconds(start, entry.begin);
      const auto unit = static_cast<size_t>(inside.back().unit);
      result.timeline.spans.push_back(
          {Stream::compute, Action::compute, AxisKind::none, inside.back().unit, kNone,
           entry.section, begin, end, 0});
      result.timeline.compute += end - begin;
      auto& time = result.units[unit];
      (kind == Section::Kind::forward ? time.forward : time.backward) += end - begin;
    }
    if (entry.action == Action::wait) inside.push_back({entry.unit, entry.live});
    if (entry.action == Action::compute && !entry.exchange) {
      const auto open = std::find_if(
          inside.rbegin(), inside.rend(), [&](const Open& one) { return one.unit == entry.unit; });
      if (open != inside.rend()) {
        if (kind == Section::Kind::forward && live_) {
          auto& saved = result.saved_activations[static_cast<size_t>(entry.unit)];
          saved = std::max(saved, entry.live - open->live);
        }
        inside.erase(std::next(open).base());
      }
    }
    before = &entry;
  }
}

Recording::Recording(ModuleRef model, std::function<int64_t()> live)
    : runtime_(Runtime::of_model(*model, "Recording")) {
  runtime_->wait_until_idle("Recording");
  recorder_ = std::make_shared<Recorder>(runtime_->world().device(), std::move(live));
  runtime_->parts().program.set_recorder(recorder_);
}

Recording::~Recording() {
  auto& program = runtime_->parts().program;
  if (program.recorder() == recorder_)
    program.set_recorder(nullptr);  // else a later one is at work
}

StepRecord Recording::finish() {
  runtime_->wait_until_idle("Recording");
  runtime_->parts().program.set_recorder(nullptr);
  const auto device = runtime_->world().device();
  if (device.is_cuda())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return recorder_->record(runtime_->program());
}

}  // namespace sherd
