// SPDX-License-Identifier: Apache-2.0
#include "shard/program_streams.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "comm/flight/flight_ring.h"
#include "comm/long_wait.h"
#include "shard/diagnostics/recorder.h"

namespace sherd {

/// CPU: one instruction on its way.
struct ProgramStreams::Item {
  Kind kind{};
  Start start;
  std::vector<std::shared_ptr<Item>> after;  // signalled the events it waits for
  Queue* queue = nullptr;
  Work work;
  Instruction instruction;      // while a recorder is set
  std::optional<size_t> entry;  // of the recorder
  uint64_t flight_entry = 0;
  bool started = false;
  bool done = false;  // finished, as all earlier items of its queue, and removed from it
};

ProgramStreams::ProgramStreams(c10::Device device, size_t events)
    : device_(device), on_cpu_(!device.is_cuda()) {
  if (on_cpu_) {
    signalled_.resize(events);
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  for (size_t stream = 0; stream < kStreams; ++stream) {
    streams_.push_back(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true));
  }
  recorded_.assign(events, false);
  for (size_t event = 0; event < events; ++event) events_.emplace_back(device.type());
}

ProgramStreams::~ProgramStreams() {
  close(/*after_failure=*/false);
}

c10::Stream ProgramStreams::current() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

// ---- CUDA ---------------------------------------------------------------------------------------

ProgramStreams::CurrentStream::CurrentStream(std::optional<c10::Stream> stream) {
  if (stream) before_ = c10::impl::VirtualGuardImpl(stream->device_type()).exchangeStream(*stream);
}

ProgramStreams::CurrentStream::~CurrentStream() {
  if (before_) c10::impl::VirtualGuardImpl(before_->device_type()).exchangeStream(*before_);
}

c10::Stream ProgramStreams::begin(const Instruction& instruction, uint64_t flight_entry) {
  const auto stream = streams_[static_cast<size_t>(instruction.stream)];
  for (const int32_t event : instruction.waits) {
    if (recorded_[static_cast<size_t>(event)]) events_[static_cast<size_t>(event)].block(stream);
  }
  if (disturbance_) disturbance_(instruction.stream, stream);
  if (recorder_) recorded_entry_ = recorder_->begin(instruction, stream);
  if (auto* ring = FlightRing::current()) ring->start(flight_entry);
  return stream;
}

void ProgramStreams::end(
    const Instruction& instruction, uint64_t flight_entry, c10::Stream stream) {
  if (auto* ring = FlightRing::current()) ring->end(flight_entry);
  if (recorder_) recorder_->end(recorded_entry_, stream);
  if (instruction.signals == kNone) return;
  events_[static_cast<size_t>(instruction.signals)].record(stream);
  recorded_[static_cast<size_t>(instruction.signals)] = true;
}

// ---- CPU ----------------------------------------------------------------------------------------

void ProgramStreams::push(
    const Instruction& instruction, Kind kind, uint64_t flight_entry, Start start) {
  auto item = std::make_shared<Item>();
  item->flight_entry = flight_entry;
  item->kind = kind;
  item->start = std::move(start);
  if (recorder_) item->instruction = instruction;
  if (disturbance_) disturbance_(instruction.stream, {});
  for (const int32_t event : instruction.waits) {
    auto& signaller = signalled_[static_cast<size_t>(event)];
    if (signaller && !signaller->done) item->after.push_back(signaller);
  }
  auto& queue = queues_[static_cast<size_t>(instruction.stream)];
  item->queue = &queue;
  queue.push_back(item);
  if (instruction.signals != kNone) {
    signalled_[static_cast<size_t>(instruction.signals)] = std::move(item);
  }
  pump();
}

/// A collective may start while earlier ones of its stream are under way (each communicator keeps
/// the order of its own); a kernel waits for them, and everything waits for a kernel.
bool ProgramStreams::try_start(Queue& queue, size_t index) {
  auto& item = *queue[index];
  if (item.started) return true;
  const bool in_turn =
      item.kind == Kind::kernel ? index == 0 : index == 0 || queue[index - 1]->started;
  const bool ready = std::all_of(
      item.after.begin(), item.after.end(), [](const auto& other) { return other->done; });
  if (!in_turn || !ready) return false;
  item.after.clear();
  if (recorder_ && !item.entry) item.entry = recorder_->begin(item.instruction, {});
  if (auto* ring = FlightRing::current()) ring->start(item.flight_entry);
  item.work = item.start({});
  item.started = true;  // not if that has thrown: then it is tried again
  return true;
}

/// Forgets what is done, in order, and starts what can start.
void ProgramStreams::pump() {
  for (auto& queue : queues_) {
    for (size_t i = 0; i < queue.size() && try_start(queue, i);) {
      if (i == 0 && queue.front()->work.done()) {
        queue.front()->work.wait();  // throws if it has failed; then it stays
        note_end(*queue.front());
        queue.pop_front();
      } else {
        ++i;
      }
    }
  }
}

void ProgramStreams::note_end(Item& item) {
  item.done = true;
  if (auto* ring = FlightRing::current()) ring->end(item.flight_entry);
  if (recorder_ && item.entry) recorder_->end(*item.entry, {});
}

void ProgramStreams::complete(const std::shared_ptr<Item>& item) {
  while (!item->done) {
    const auto first = item->queue->front();
    for (const auto& other : std::vector(first->after)) complete(other);
    pump();
    if (first->done) continue;
    TORCH_INTERNAL_ASSERT(first->started, "[shard] an instruction waits for itself");
    first->work.wait();
    note_end(*first);
    item->queue->pop_front();
    pump();
  }
}

// ---- both ---------------------------------------------------------------------------------------

void ProgramStreams::wait(std::span<const int32_t> events) {
  if (on_cpu_) {
    for (const int32_t event : events) {
      // A copy: completing it may let others signal the event anew.
      const auto signaller = signalled_[static_cast<size_t>(event)];
      if (signaller) complete(signaller);
    }
    return;
  }
  const auto stream = current();
  for (const int32_t event : events) {
    if (recorded_[static_cast<size_t>(event)]) events_[static_cast<size_t>(event)].block(stream);
  }
}

bool ProgramStreams::have_happened(std::span<const int32_t> events) {
  if (!on_cpu_) return true;
  pump();
  return std::all_of(events.begin(), events.end(), [&](int32_t event) {
    const auto& signaller = signalled_[static_cast<size_t>(event)];
    return !signaller || signaller->done;
  });
}

void ProgramStreams::signal(int32_t event) {
  if (on_cpu_) {
    signalled_[static_cast<size_t>(event)] = nullptr;  // the host has done it already
    return;
  }
  events_[static_cast<size_t>(event)].record(current());
  recorded_[static_cast<size_t>(event)] = true;
}

void ProgramStreams::join(Stream stream) {
  if (on_cpu_) return;
  c10::Event now(device_.type());
  now.record(current());
  now.block(streams_[static_cast<size_t>(stream)]);
}

std::optional<c10::Stream> ProgramStreams::compute() const {
  if (on_cpu_) return std::nullopt;
  return current();
}

void ProgramStreams::wait_for(c10::Stream stream) {
  if (stream == current()) return;
  c10::Event end(device_.type());
  end.record(stream);
  end.block(current());
}

void ProgramStreams::fork() {
  std::fill(recorded_.begin(), recorded_.end(), false);
  for (const Stream stream : {Stream::gather, Stream::reduce, Stream::outer}) join(stream);
}

void ProgramStreams::rejoin() {
  for (const Stream stream : {Stream::gather, Stream::reduce, Stream::outer}) {
    c10::Event end(device_.type());
    end.record(streams_[static_cast<size_t>(stream)]);
    end.block(current());
  }
  std::fill(recorded_.begin(), recorded_.end(), false);
}

void ProgramStreams::disturb_compute() {
  if (!disturbance_) return;
  if (on_cpu_) {
    disturbance_(Stream::compute, {});
  } else {
    disturbance_(Stream::compute, current());
  }
}

void ProgramStreams::finish() {
  for (auto& queue : queues_) {
    while (!queue.empty()) {
      const auto last = queue.back();
      complete(last);
    }
  }
  if (on_cpu_) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  for (const auto& stream : streams_) guard.synchronizeStream(stream);
}

void ProgramStreams::close(bool after_failure) noexcept {
  // All ranks have issued the same, so it comes to an end, and the communicators, where models
  // share them, can serve another one. With an exception on its way, peers may never join: then
  // what has not started is dropped, and what has keeps its tensors alive. After a pass has failed,
  // either may be so: on CPU, a long wait means that peers do not join. On CUDA, memory must not be
  // freed while a collective may still write to it, so the host waits as long as an operation may
  // take.
  if (std::uncaught_exceptions() == 0) {
    static const std::function<void()> give_up = [] { throw std::runtime_error("a long wait"); };
    std::optional<LongWaitScope> limit;
    if (after_failure) limit.emplace(give_up);
    try {
      finish();
    } catch (const std::exception&) {
      // A world that fails can't be waited for.
    }
  }
  for (auto& queue : queues_) queue.clear();
  std::fill(signalled_.begin(), signalled_.end(), nullptr);
}

}  // namespace sherd
