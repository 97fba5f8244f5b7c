// SPDX-License-Identifier: Apache-2.0
#include "train/step_log.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "device/timing.h"

namespace sherd {

StepLog::StepLog(const World& world) : world_(world) {
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(world.device());
  losses_ = at::zeros({kMost}, numbers);
  norms_ = at::zeros({kMost}, numbers);
}

void StepLog::begin() {
  if (steps_.empty()) begin_ = std::chrono::steady_clock::now();
}

void StepLog::add(
    const StepMetrics& known,
    const at::Tensor& loss,
    const at::Tensor& norm,
    int64_t targets,
    int64_t tokens) {
  const auto place = std::ssize(steps_);
  losses_.narrow(0, place, 1).copy_(loss, /*non_blocking=*/true);
  norms_.narrow(0, place, 1).copy_(norm, /*non_blocking=*/true);
  steps_.push_back({known, targets, tokens});
}

std::vector<StepMetrics> StepLog::take() {
  const auto count = std::ssize(steps_);
  if (count == 0) return {};
  auto losses = losses_.narrow(0, 0, count);
  world_.communicator().all_reduce(losses, Reduction::sum()).synchronize();
  losses = losses.cpu();
  const auto norms = norms_.narrow(0, 0, count).cpu();
  // An emulated sum is this rank's part; the others are taken to be like it.
  const double others =
      world_.launcher() == Launcher::emulated ? static_cast<double>(world_.size()) : 1;
  const double seconds = seconds_since(begin_) / static_cast<double>(count);
  std::vector<StepMetrics> result;
  for (int64_t i = 0; i < count; ++i) {
    const auto& [known, targets, tokens] = steps_[static_cast<size_t>(i)];
    auto metrics = known;
    metrics.loss = losses.const_data_ptr<double>()[i] * others / static_cast<double>(targets);
    metrics.grad_norm = norms.const_data_ptr<double>()[i];
    metrics.step_seconds = seconds;
    metrics.tokens_per_second = static_cast<double>(tokens) / seconds;
    result.push_back(metrics);
  }
  steps_.clear();
  return result;
}

struct SharedWishes::Event {
  explicit Event(c10::Device device)
      : event(device.type()),
        stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device)) {}
  c10::Event event;
  c10::Stream stream;
};

SharedWishes::SharedWishes(const World& world)
    : world_(world), delay_(world.device().is_cuda() ? 1 : 0) {
  const auto numbers = at::TensorOptions().dtype(at::kDouble);
  host_ = at::zeros({2}, numbers.pinned_memory(world.device().is_cuda()));
  device_ = world.device().is_cuda() ? at::zeros({2}, numbers.device(world.device())) : host_;
}

SharedWishes::Wishes SharedWishes::exchange(const Wishes& mine) {
  auto* numbers = host_.mutable_data_ptr<double>();
  const auto sums = [&] {
    return Wishes{static_cast<int64_t>(numbers[0]), static_cast<int64_t>(numbers[1])};
  };
  const auto write = [&] {
    numbers[0] = static_cast<double>(mine.stop);
    numbers[1] = static_cast<double>(mine.busy);
  };
  if (delay_ == 0) {
    write();
    world_.communicator().all_reduce(device_, Reduction::sum()).synchronize();
    return sums();
  }
  Wishes before;
  if (arrived_) {
    arrived_->event.synchronize();
    before = sums();
  }
  // The pinned numbers were read by the device before the event that was waited for.
  write();
  device_.copy_(host_, /*non_blocking=*/true);
  world_.communicator().all_reduce(device_, Reduction::sum()).wait();
  host_.copy_(device_, /*non_blocking=*/true);
  arrived_ = std::make_shared<Event>(world_.device());
  arrived_->event.record(arrived_->stream);
  return before;
}

}  // namespace sherd
