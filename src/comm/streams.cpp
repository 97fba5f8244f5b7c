// SPDX-License-Identifier: Apache-2.0
#include "comm/streams.h"
#include "comm/time_text.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <thread>

namespace sherd {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);  // how often the keeper is asked

class StreamWork final : public Work::State {
 public:
  StreamWork(
      c10::Stream stream,
      std::string scope,
      std::chrono::milliseconds timeout,
      std::shared_ptr<StreamKeeper> keeper)
      : stream_(stream), scope_(std::move(scope)), timeout_(timeout), keeper_(std::move(keeper)) {
    end_.record(c10::cuda::CUDAStream(stream));
  }

  void wait() override {
    const auto current = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    if (current.unwrap() != stream_) end_.block(current);
  }

  void synchronize() override {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + timeout_;
    auto look = Clock::now() + kLook;
    while (!end_.query()) {
      if (Clock::now() > deadline) {
        fail(c10::str("not done after ", in_seconds(timeout_), ": a rank does not take part"));
      }
      if (keeper_ && Clock::now() > look) {
        if (const auto failure = keeper_->failure(); !failure.empty()) fail(failure);
        look = Clock::now() + kLook;
      }
      std::this_thread::yield();
    }
  }

  bool done() override { return end_.query(); }

 private:
  [[noreturn]] void fail(const std::string& what) {
    if (keeper_) keeper_->give_up();
    C10_THROW_ERROR(DistBackendError, scope_ + what);
  }

  c10::Stream stream_;
  std::string scope_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<StreamKeeper> keeper_;
  at::cuda::CUDAEvent end_;
};

}  // namespace

c10::Stream communication_stream(c10::Device device, bool high_priority) {
  return c10::cuda::getStreamFromPool(high_priority, device.index());
}

std::shared_ptr<Work::State> stream_work(
    c10::Stream stream,
    std::string scope,
    std::chrono::milliseconds timeout,
    std::shared_ptr<StreamKeeper> keeper) {
  return std::make_shared<StreamWork>(stream, std::move(scope), timeout, std::move(keeper));
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
