// SPDX-License-Identifier: Apache-2.0
#include "train/step_log.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "device/timing.h"

namespace sherd {
namespace {

constexpr int64_t kNumbers = 6;  // that ranks exchange after each step

/// The slowest rank and its time in one number, whose maximum is that of the times: whole
/// microseconds, then the rank. A double keeps both exactly, for up to 38 hours.
constexpr double kRanks = 65536;
double packed(double seconds, int64_t rank) {
  constexpr double kMost = 1e5;
  return std::floor(std::clamp(seconds, 0.0, kMost) * 1e6) * kRanks + static_cast<double>(rank);
}

RankSpeeds unpacked(double slowest, double negated_fastest) {
  const double microseconds = std::floor(slowest / kRanks);
  return {
      static_cast<int64_t>(slowest - microseconds * kRanks), microseconds * 1e-6,
      std::min(-negated_fastest, microseconds * 1e-6)};
}

}  // namespace

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

void StepLog::add_speeds(const RankSpeeds& speeds) {
  if (!steps_.empty()) steps_.back().metrics.ranks = speeds;
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
  host_ = at::zeros({kNumbers}, numbers.pinned_memory(world.device().is_cuda()));
  device_ =
      world.device().is_cuda() ? at::zeros({kNumbers}, numbers.device(world.device())) : host_;
}

SharedWishes::Wishes SharedWishes::exchange(const Wishes& mine) {
  auto* numbers = host_.mutable_data_ptr<double>();
  const auto read = [&] {
    return Wishes{
        numbers[0] > 0, numbers[1] > 0, unpacked(numbers[2], numbers[3]),
        unpacked(numbers[4], numbers[5])};
  };
  const auto write = [&] {
    numbers[0] = mine.stop ? 1 : 0;
    numbers[1] = mine.busy ? 1 : 0;
    numbers[2] = packed(mine.step.slowest, world_.rank());
    numbers[3] = -mine.step.slowest;
    numbers[4] = packed(mine.mean.slowest, world_.rank());
    numbers[5] = -mine.mean.slowest;
  };
  if (delay_ == 0) {
    write();
    world_.communicator().all_reduce(device_, Reduction::max()).synchronize();
    return read();
  }
  Wishes before;
  if (arrived_) {
    arrived_->event.synchronize();
    before = read();
  }
  // The pinned numbers were read by the device before the event that was waited for.
  write();
  device_.copy_(host_, /*non_blocking=*/true);
  world_.communicator().all_reduce(device_, Reduction::max()).wait();
  host_.copy_(device_, /*non_blocking=*/true);
  arrived_ = std::make_shared<Event>(world_.device());
  arrived_->event.record(arrived_->stream);
  return before;
}

}  // namespace sherd
