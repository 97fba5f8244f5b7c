// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sherd/comm/communicator.h"
#include "sherd/plan/program.h"

namespace sherd {

class Recorder;

/// The streams and events of a program, on a device.
///
/// CUDA: three streams beside the current one, which is `compute`. Everything is enqueued at once;
/// the host never waits. CPU: the compute stream is the host itself; each other stream is a queue
/// whose collectives run on the progress thread as soon as what they wait for is there, and whose
/// kernels run on the host, at the next call here.
class ProgramStreams {
 public:
  /// Started with its stream (CUDA); the returned Work is its end (CPU).
  using Start = std::function<Work(Communicator::OnStream)>;
  enum class Kind : uint8_t { collective, kernel };

  ProgramStreams(c10::Device device, size_t events);
  ~ProgramStreams();
  ProgramStreams(const ProgramStreams&) = delete;
  ProgramStreams& operator=(const ProgramStreams&) = delete;

  size_t events() const { return on_cpu_ ? signalled_.size() : events_.size(); }

  /// On a stream other than compute. `start` and what it refers to must live until the end.
  template <class F>
  void issue(const Instruction& instruction, Kind kind, F start) {
    if (on_cpu_) {
      push(instruction, kind, Start(std::move(start)));
    } else {
      const auto stream = begin(instruction);
      {
        // Kernels run on the current stream; collectives are given theirs.
        const CurrentStream current(kind == Kind::kernel ? std::optional(stream) : std::nullopt);
        start(Communicator::OnStream(stream));
      }
      end(instruction, stream);
    }
  }

  /// Compute waits for the events: CUDA enqueues that, CPU blocks until they have happened.
  void wait(std::span<const int32_t> events);
  /// Whether wait() would return at once. CUDA: it always does.
  bool have_happened(std::span<const int32_t> events);
  /// What compute has done by now is the event.
  void signal(int32_t event);
  /// What the stream is given next comes after all that compute has been given.
  void join(Stream stream);
  /// CUDA: the stream that is `compute` now.
  std::optional<c10::Stream> compute() const;
  /// CUDA: what compute is given next comes after all that this stream has been given.
  void wait_for(c10::Stream stream);
  /// CUDA: all streams come from the current one, and no event has been signalled; and back. Round
  /// what is captured in a graph.
  void fork();
  void rejoin();
  /// CPU: starts what can be started.
  void pump();
  /// Blocks the host until everything issued is done. Throws what went wrong.
  void finish();
  /// Gives up on what was not started, and waits for the rest without throwing.
  void abandon() noexcept;

  /// Called with the stream (CUDA) or nothing (CPU) before each instruction of the kind, to disturb
  /// the timing in tests.
  using Disturbance = std::function<void(Stream, Communicator::OnStream)>;
  void set_disturbance(Disturbance disturbance) { disturbance_ = std::move(disturbance); }
  void disturb_compute();
  void set_recorder(std::shared_ptr<Recorder> recorder) { recorder_ = std::move(recorder); }

 private:
  struct Item;
  using Queue = std::deque<std::shared_ptr<Item>>;
  void push(const Instruction& instruction, Kind kind, Start start);
  bool try_start(Queue& queue, size_t index);
  void complete(const std::shared_ptr<Item>& item);
  void note_end(Item& item);
  /// The current stream of its device while it lives, if one is given; then, whatever is thrown,
  /// the one before.
  class CurrentStream {
   public:
    explicit CurrentStream(std::optional<c10::Stream> stream);
    ~CurrentStream();
    CurrentStream(const CurrentStream&) = delete;
    CurrentStream& operator=(const CurrentStream&) = delete;

   private:
    std::optional<c10::Stream> before_;
  };
  c10::Stream begin(const Instruction& instruction);
  void end(const Instruction& instruction, c10::Stream stream);
  c10::Stream current() const;

  c10::Device device_;
  bool on_cpu_;
  Disturbance disturbance_;
  std::shared_ptr<Recorder> recorder_;
  size_t recorded_entry_ = 0;  // of the instruction that is being enqueued

  // CPU
  std::array<Queue, kStreams> queues_;
  std::vector<std::shared_ptr<Item>> signalled_;  // by event: who signalled it last

  // CUDA
  std::vector<c10::Stream> streams_;  // by Stream; compute's place is not used
  std::deque<c10::Event> events_;
  std::vector<bool> recorded_;
};

}  // namespace sherd
