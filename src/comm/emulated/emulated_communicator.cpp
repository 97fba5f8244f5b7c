// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/emulated/emulated_session.h"
#include "comm/emulated/recorded_calls.h"
#include "comm/overlap.h"
#include "comm/streams.h"
#include "kernels/occupy.h"
#include "kernels/repeat.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

/// State that all communicators of one emulated world share.
struct EmulatedWorld {
  Emulation emulation;
  std::mutex mutex;
  std::vector<RecordedCall> calls;
};

/// CPU work that is done at a given time.
class TimedWork final : public Work::State {
 public:
  explicit TimedWork(Clock::time_point end) : end_(end) {}
  void wait() override { std::this_thread::sleep_until(end_); }
  void synchronize() override { wait(); }
  bool done() override { return Clock::now() >= end_; }

 private:
  Clock::time_point end_;
};

/// Work on a stream that the caller gave. Its event is recorded only in wait(), so that it costs
/// nothing without one; work that was enqueued in between is waited for as well.
class GivenStreamWork final : public Work::State {
 public:
  explicit GivenStreamWork(c10::Stream stream) : stream_(stream) {}
  void wait() override {
    c10::Event end(stream_.device_type());
    end.record(stream_);
    end.block(current_stream(stream_.device()));
  }
  void synchronize() override { stream_.synchronize(); }
  bool done() override { return stream_.query(); }

 private:
  c10::Stream stream_;
};

class EmulatedCommunicator final : public Communicator {
 public:
  EmulatedCommunicator(
      std::shared_ptr<EmulatedWorld> world, int64_t rank, int64_t size, Identity identity)
      : Communicator(rank, size, std::move(identity)), world_(std::move(world)) {
    if (device().is_cuda()) {
      stream_ = communication_stream(device(), /*high_priority=*/true);
    }
  }

  std::string backend() const override { return "emulated"; }

  std::vector<RecordedCall> calls(bool forget) {
    std::lock_guard lock(world_->mutex);
    return forget ? std::exchange(world_->calls, {}) : world_->calls;
  }

 private:
  const c10::Device& device() const { return world_->emulation.device; }
  c10::DeviceType device_type() const override { return device().type(); }

  /// Records the call, calls `fill`, and makes the operation take its time on the network.
  template <class Fill>
  Work run(Collective collective, int64_t bytes, c10::ScalarType dtype, OnStream given, Fill fill) {
    {
      std::lock_guard lock(world_->mutex);
      world_->calls.push_back({collective, name(), size(), bytes, dtype});
    }
    const auto& network = world_->emulation.network;
    const double time = network ? seconds(network->link(axis()), collective, bytes, size()) : 0;
    if (!device().is_cuda()) return run_on_cpu(time, fill);

    const StreamScope scope_of_stream(given, *stream_);
    const auto stream = scope_of_stream.stream();
    const auto clock = time > 0 ? clock_of(stream) : at::Tensor();
    if (time > 0) note_time(clock, stream);
    fill();
    if (time > 0) occupy_until(clock, time, world_->emulation.sms, stream);
    if (given) return Work(std::make_shared<GivenStreamWork>(stream));
    return Work(stream_work(stream));
  }

  /// Returns the clock of a stream. Each has its own, since operations on two streams run at the
  /// same time.
  const at::Tensor& clock_of(c10::Stream stream) {
    auto& clock = clocks_[stream.id()];
    if (!clock.defined()) {
      clock = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(device()));
    }
    return clock;
  }

  template <class Fill>
  Work run_on_cpu(double time, Fill fill) {
    // One communicator's operations take turns, as on a real network.
    const auto begin = std::max(Clock::now(), busy_until_);
    fill();
    if (time <= 0) return {};
    busy_until_ =
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time));
    return Work(std::make_shared<TimedWork>(busy_until_));
  }

  static int64_t bytes_of(const at::Tensor& tensor) {
    return static_cast<int64_t>(tensor.nbytes());
  }

  Work do_all_gather(std::span<const Transfer> transfers, OnStream stream) override {
    int64_t bytes = 0;
    for (const auto& transfer : transfers) bytes += bytes_of(transfer.output);
    return run(Collective::all_gather, bytes, dtype_of(transfers), stream, [&] {
      for (const auto& [output, input] : transfers) {
        repeat(
            output.mutable_data_ptr(), input.const_data_ptr(), bytes_of(input), size(), device());
      }
    });
  }

  Work do_reduce_scatter(
      std::span<const Transfer> transfers, Reduction reduction, OnStream stream) override {
    int64_t bytes = 0;
    for (const auto& transfer : transfers) bytes += bytes_of(transfer.input);
    return run(Collective::reduce_scatter, bytes, dtype_of(transfers), stream, [&] {
      for (const auto& [output, input] : transfers) {
        if (output.numel() == 0) continue;
        if (!overlap(output, input)) {
          output.view({-1}).copy_(input.view({size(), -1}).select(0, rank()));
        }
        scale(output, reduction);
      }
    });
  }

  Work do_all_reduce(
      std::span<const at::Tensor> tensors, Reduction reduction, OnStream stream) override {
    int64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += bytes_of(tensor);
    const auto dtype = tensors.empty() ? at::kFloat : tensors.front().scalar_type();
    return run(Collective::all_reduce, bytes, dtype, stream, [&] {
      for (const auto& tensor : tensors) scale(tensor, reduction);
    });
  }

  Work do_broadcast(at::Tensor tensor, int64_t, OnStream stream) override {
    return run(Collective::broadcast, bytes_of(tensor), tensor.scalar_type(), stream, [] {});
  }

  Work do_all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits,
      std::vector<int64_t> input_splits,
      OnStream stream) override {
    return run(Collective::all_to_all, bytes_of(input), input.scalar_type(), stream, [&] {
      // Each peer is taken to send what this rank sends to it, as much of that as is expected.
      int64_t to = 0;
      int64_t from = 0;
      for (size_t peer = 0; peer < output_splits.size(); ++peer) {
        const int64_t length = std::min(output_splits[peer], input_splits[peer]);
        output.view({-1}).narrow(0, to, length).copy_(input.view({-1}).narrow(0, from, length));
        output.view({-1}).narrow(0, to + length, output_splits[peer] - length).zero_();
        to += output_splits[peer];
        from += input_splits[peer];
      }
    });
  }

  Work do_send(at::Tensor tensor, int64_t, OnStream stream) override {
    return run(Collective::send, bytes_of(tensor), tensor.scalar_type(), stream, [] {});
  }

  Work do_receive(at::Tensor tensor, int64_t, OnStream stream) override {
    return run(Collective::receive, bytes_of(tensor), tensor.scalar_type(), stream, [&] {
      tensor.zero_();
    });
  }

  Work do_barrier() override {
    return run(Collective::barrier, 0, at::kByte, {}, [] {});
  }

  std::shared_ptr<Communicator> do_split(std::vector<int64_t> ranks, Identity child) override {
    const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return std::make_shared<EmulatedCommunicator>(
        world_, place, std::ssize(ranks), std::move(child));
  }

  static void scale(const at::Tensor& tensor, Reduction reduction) {
    if (reduction.kind == Reduction::Kind::scaled_sum) tensor.mul_(reduction.factor);
  }

  static c10::ScalarType dtype_of(std::span<const Transfer> transfers) {
    return transfers.empty() ? at::kFloat : transfers.front().input.scalar_type();
  }

  std::shared_ptr<EmulatedWorld> world_;
  OnStream stream_;
  std::map<c10::StreamId, at::Tensor> clocks_;
  Clock::time_point busy_until_{};
};

}  // namespace

std::unique_ptr<Session> open_emulated(const Emulation& emulation) {
  TORCH_CHECK_VALUE(
      emulation.size >= 1 && emulation.size <= 65536, "[comm.emulated] size is ", emulation.size,
      "; it must be 1 to 65,536");
  TORCH_CHECK_VALUE(
      emulation.rank >= 0 && emulation.rank < emulation.size, "[comm.emulated] rank is ",
      emulation.rank, "; it must be 0 to ", emulation.size - 1);
  TORCH_CHECK_VALUE(
      emulation.sms >= 1, "[comm.emulated] sms is ", emulation.sms, "; it must be at least 1");
  auto world = std::make_shared<EmulatedWorld>();
  world->emulation = emulation;
  auto& device = world->emulation.device;
  if (device.is_cuda() && !device.has_index()) device.set_index(0);
  const Session::Location location{.launcher = Launcher::emulated, .device = device};
  return std::make_unique<Session>(
      location, std::make_shared<EmulatedCommunicator>(
                    std::move(world), emulation.rank, emulation.size,
                    Communicator::Identity{"world", "world", emulation.rank}));
}

std::vector<RecordedCall> recorded_calls(Communicator& communicator, bool forget) {
  auto* emulated = dynamic_cast<EmulatedCommunicator*>(&communicator);
  TORCH_CHECK_VALUE(
      emulated != nullptr, "[comm.emulated] '", communicator.name(), "' is an ",
      communicator.backend(), " communicator; only emulated ones record their calls");
  return emulated->calls(forget);
}

}  // namespace sherd
