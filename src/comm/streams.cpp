// SPDX-License-Identifier: Apache-2.0
#include "comm/streams.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAMacros.h>
#include <c10/cuda/CUDAStream.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/flight/flight_ring.h"
#include "comm/time_text.h"

namespace sherd {

namespace {

/// Events that are not in use, kept because making one takes longer than recording it.
class EventPool {
 public:
  std::unique_ptr<at::cuda::CUDAEvent> take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<at::cuda::CUDAEvent>();
    auto event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void give(std::unique_ptr<at::cuda::CUDAEvent> event) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(event));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<at::cuda::CUDAEvent>> free_;
};

/// Returns the pool of a device: an event belongs to one. Never destroyed, since works may outlive
/// the library's statics.
EventPool& pool_of(c10::DeviceIndex device) {
  static auto& pools = *new std::array<EventPool, C10_COMPILE_TIME_MAX_GPUS>();
  return pools.at(static_cast<size_t>(device));
}

/// An event from the pool.
class PooledEvent {
 public:
  explicit PooledEvent(c10::DeviceIndex device) : device_(device), event_(pool_of(device).take()) {}
  ~PooledEvent() { pool_of(device_).give(std::move(event_)); }
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  at::cuda::CUDAEvent* operator->() const { return event_.get(); }

 private:
  c10::DeviceIndex device_;
  std::unique_ptr<at::cuda::CUDAEvent> event_;
};

}  // namespace

/// One unfinished work: its end, and its time limit.
struct StreamWatch::Entry {
  explicit Entry(c10::DeviceIndex device) : end(device) {}
  PooledEvent end;
  std::string scope;
  std::chrono::milliseconds timeout{};
  std::chrono::steady_clock::time_point deadline;
  uint64_t flight_entry = 0;
};

class StreamWork final : public Work::State {
 public:
  StreamWork(
      c10::Stream stream,
      std::string scope,
      std::shared_ptr<StreamWatch> watch,
      std::chrono::milliseconds timeout,
      uint64_t flight_entry)
      : stream_(stream),
        entry_(std::make_shared<StreamWatch::Entry>(stream.device_index())),
        watch_(std::move(watch)) {
    entry_->end->record(c10::cuda::CUDAStream(stream));
    if (!watch_) return;
    entry_->scope = std::move(scope);
    entry_->timeout = timeout;
    entry_->flight_entry = flight_entry;
    entry_->deadline = std::chrono::steady_clock::now() + timeout;
    // Work that is captured into a graph does not run now, and its event can't be queried.
    const auto capturing = c10::cuda::currentStreamCaptureStatusMayInitCtx();
    if (capturing == c10::cuda::CaptureStatus::None) {
      watch_->add(entry_);
    } else if (auto* ring = FlightRing::current()) {
      ring->end(flight_entry);
    }
  }

  void wait() override {
    if (watch_) watch_->check();
    const auto current = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    if (current.unwrap() != stream_) entry_->end->block(current);
  }

  void synchronize() override {
    while (!entry_->end->query() && !(watch_ && watch_->has_failed())) std::this_thread::yield();
    if (watch_) watch_->check();
  }

  bool done() override {
    if (watch_) watch_->check();
    return entry_->end->query();
  }

 private:
  c10::Stream stream_;
  std::shared_ptr<StreamWatch::Entry> entry_;
  std::shared_ptr<StreamWatch> watch_;
};

StreamWatch::StreamWatch(std::shared_ptr<Abortable> source) : source_(std::move(source)) {
  thread_ = std::thread([this] { run(); });
}

StreamWatch::~StreamWatch() {
  stop();
}

void StreamWatch::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StreamWatch::check() const {
  if (!has_failed()) return;
  std::lock_guard lock(mutex_);
  C10_THROW_ERROR(DistBackendError, error_);
}

void StreamWatch::add(std::shared_ptr<Entry> entry) {
  std::lock_guard lock(mutex_);
  open_.push_back(std::move(entry));
}

void StreamWatch::run() {
  // Querying an event must not invalidate a capture that another thread is making.
  auto mode = cudaStreamCaptureModeRelaxed;
  C10_CUDA_CHECK_WARN(cudaThreadExchangeStreamCaptureMode(&mode));
  constexpr auto kPause = std::chrono::milliseconds(50);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [&] { return stopping_; })) {
    if (auto* ring = FlightRing::current()) ring->beat();
    if (!failed_) check_oldest();
    if (!error_.empty() && !failed_) {
      failed_.store(true, std::memory_order_release);
      lock.unlock();
      source_->abort();
      lock.lock();
    }
  }
}

void StreamWatch::forget_finished() {
  auto* ring = FlightRing::current();
  while (!open_.empty() && open_.front()->end->query()) {
    if (ring) ring->end(open_.front()->flight_entry);
    open_.pop_front();
  }
}

/// Writes to the flight recorder why the work under way never ends.
void StreamWatch::record_failure(bool late) const {
  auto* ring = FlightRing::current();
  if (!ring) return;
  for (const auto& entry : open_) ring->end(entry->flight_entry, flight::State::failed);
  ring->mark(late ? flight::Reason::time_limit : flight::Reason::error, error_);
}

void StreamWatch::wait_until_idle(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::unique_lock lock(mutex_);
  for (forget_finished(); !open_.empty() && !failed_; forget_finished()) {
    if (std::chrono::steady_clock::now() > deadline) return;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
}

/// Drops the entries that are done, and keeps an error if the oldest of the others has one.
void StreamWatch::check_oldest() {
  try {
    forget_finished();
    if (open_.empty()) return;
    const auto& oldest = *open_.front();
    const auto open_for = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - (oldest.deadline - oldest.timeout));
    if (const auto failure = source_->failure(open_for); !failure.empty()) {
      error_ = oldest.scope + failure;
      record_failure(/*late=*/false);
    } else if (std::chrono::steady_clock::now() > oldest.deadline) {
      error_ = c10::str(
          oldest.scope, "not done after ", in_seconds(oldest.timeout),
          ": a rank does not take part");
      record_failure(/*late=*/true);
    }
  } catch (const std::exception& error) {
    error_ = error.what();
  }
}

c10::Stream communication_stream(c10::Device device, bool high_priority) {
  return c10::cuda::getStreamFromPool(high_priority, device.index());
}

c10::Stream control_stream(c10::Device device) {
  static std::mutex mutex;
  static auto& streams = *new std::map<c10::DeviceIndex, cudaStream_t>();  // live as long as CUDA
  std::lock_guard lock(mutex);
  auto& stream = streams[device.index()];
  if (!stream) {
    const c10::cuda::CUDAGuard guard(device);
    int lowest = 0;
    int highest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  }
  return c10::cuda::getStreamFromExternal(stream, device.index());
}

c10::Stream current_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).unwrap();
}

std::shared_ptr<Work::State> stream_work(
    c10::Stream stream,
    std::string scope,
    std::shared_ptr<StreamWatch> watch,
    std::chrono::milliseconds timeout,
    uint64_t flight_entry) {
  return std::make_shared<StreamWork>(
      stream, std::move(scope), std::move(watch), timeout, flight_entry);
}

StreamScope::StreamScope(Communicator::OnStream given, c10::Stream own)
    : stream_(given.value_or(own)),
      previous_(c10::cuda::getCurrentCUDAStream(own.device_index()).unwrap()) {
  if (!given && previous_ != own) {
    at::cuda::CUDAEvent written;
    written.record(c10::cuda::CUDAStream(previous_));
    written.block(c10::cuda::CUDAStream(own));
  }
  c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream(stream_));
}

StreamScope::~StreamScope() {
  c10::cuda::setCurrentCUDAStream(c10::cuda::CUDAStream(previous_));
}

}  // namespace sherd
