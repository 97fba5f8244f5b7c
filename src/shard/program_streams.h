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
/// CUDA: the current stream is `compute`; the program has three more. Everything is enqueued at
/// once, and the host never waits. CPU: the compute stream is the host itself; each other stream is
/// a queue. Calls of this class's functions start its collectives and run its kernels, once their
/// events have happened; a thread of the backend moves the collectives forward.
class ProgramStreams {
 public:
  /// A function that starts an instruction: gets its stream on CUDA, and returns the Work to wait
  /// for on CPU.
  using Start = std::function<Work(Communicator::OnStream)>;
  enum class Kind : uint8_t { collective, kernel };

  ProgramStreams(c10::Device device, size_t events);
  ~ProgramStreams();
  ProgramStreams(const ProgramStreams&) = delete;
  ProgramStreams& operator=(const ProgramStreams&) = delete;

  size_t events() const { return on_cpu_ ? signalled_.size() : events_.size(); }

  /// Issues an instruction on a stream other than compute. What `start` refers to must live until
  /// the instruction is done. `flight_entry`: its entry in the flight recorder; 0: none. On CUDA it
  /// ends there when the host has enqueued it.
  template <class F>
  void issue(const Instruction& instruction, Kind kind, uint64_t flight_entry, F start) {
    if (on_cpu_) {
      push(instruction, kind, flight_entry, Start(std::move(start)));
    } else {
      const auto stream = begin(instruction, flight_entry);
      {
        // Kernels run on the current stream; collectives are given theirs.
        const CurrentStream current(kind == Kind::kernel ? std::optional(stream) : std::nullopt);
        start(Communicator::OnStream(stream));
      }
      end(instruction, flight_entry, stream);
    }
  }

  /// Makes compute wait for the events: CUDA enqueues the waits, CPU blocks until they have
  /// happened.
  void wait(std::span<const int32_t> events);
  /// Returns whether wait() would return at once; on CUDA always true.
  bool have_happened(std::span<const int32_t> events);
  /// Signals an event: everything that compute was given so far is done when it happens.
  void signal(int32_t event);
  /// Makes a stream wait for everything that compute has been given.
  void join(Stream stream);
  /// Returns the stream that is `compute` now; nothing on CPU.
  std::optional<c10::Stream> compute() const;
  /// CUDA: makes compute wait for everything that this stream has been given.
  void wait_for(c10::Stream stream);
  /// CUDA: begin and end the work that a graph captures. fork() makes all streams wait for the
  /// current one and forgets signalled events; rejoin() makes the current stream wait for all.
  void fork();
  void rejoin();
  /// CPU: starts the instructions whose events have happened. Throws if a collective has failed.
  void pump();
  /// Blocks the host until everything that was issued is done. Throws if a collective has failed
  /// (on CPU).
  void finish();
  /// Ends the use of these streams: waits until everything is done, and ignores errors. During
  /// stack unwinding it does not wait, and on CPU after a pass has failed not for long: it then
  /// drops what has not started.
  void close(bool after_failure) noexcept;

  /// Called before each instruction with its stream and, on CUDA, the device's stream, to disturb
  /// the timing in tests.
  using Disturbance = std::function<void(Stream, Communicator::OnStream)>;
  void set_disturbance(Disturbance disturbance) { disturbance_ = std::move(disturbance); }
  void disturb_compute();
  void set_recorder(std::shared_ptr<Recorder> recorder) { recorder_ = std::move(recorder); }

 private:
  struct Item;
  using Queue = std::deque<std::shared_ptr<Item>>;
  void push(const Instruction& instruction, Kind kind, uint64_t flight_entry, Start start);
  bool try_start(Queue& queue, size_t index);
  void complete(const std::shared_ptr<Item>& item);
  void note_end(Item& item);
  /// A scope in which a stream, if given, is the current one of its device.
  class CurrentStream {
   public:
    explicit CurrentStream(std::optional<c10::Stream> stream);
    ~CurrentStream();
    CurrentStream(const CurrentStream&) = delete;
    CurrentStream& operator=(const CurrentStream&) = delete;

   private:
    std::optional<c10::Stream> before_;
  };
  c10::Stream begin(const Instruction& instruction, uint64_t flight_entry);
  void end(const Instruction& instruction, uint64_t flight_entry, c10::Stream stream);
  c10::Stream current() const;

  c10::Device device_;
  bool on_cpu_;
  Disturbance disturbance_;
  std::shared_ptr<Recorder> recorder_;
  size_t recorded_entry_ = 0;  // of the instruction that is being enqueued

  // CPU
  std::array<Queue, kStreams> queues_;
  std::vector<std::shared_ptr<Item>> signalled_;  // by event: its last signaller

  // CUDA
  std::vector<c10::Stream> streams_;  // by Stream; compute's place is not used
  std::deque<c10::Event> events_;
  std::vector<bool> recorded_;
};

}  // namespace sherd
