// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "comm/flight/ring_format.h"
#include "sherd/export.h"

namespace sherd {

// Note [The flight recorder]
// A rank's last instructions and collectives, in a file that the rank has mapped: the kernel keeps
// what was written, however the process ends. To write an entry takes no system call. There is at
// most one ring in a process, because signal handlers and the engine of all worlds write to it; it
// stays mapped until the process ends, because they may still do so then.

/// The ring of this process. All functions may be called on any thread; they don't block, apart
/// from a lock for names, and don't throw unless they say so.
class FlightRing {
 public:
  struct Options {
    std::string path{};
    int64_t entries = 0;
    int64_t run = 0;  ///< equal for all ranks of a run
    int64_t rank = 0;
    int64_t size = 1;
    std::string backend{};
  };
  /// What an entry says apart from its times.
  struct Event {
    flight::Type type{};
    uint8_t kind = 0;
    uint8_t stream = 0;
    uint32_t name = 0;  ///< from name()
    int32_t index = -1;
    int32_t line = -1;
    int64_t bytes = 0;
  };

  /// Creates the file with all the room that it needs, and makes it the process's ring. Throws if
  /// that fails, for example because the disk is full.
  SHERD_API static void open(const Options& options);
  /// From now on nothing is recorded.
  SHERD_API static void close() noexcept;
  /// Returns the process's ring, or null.
  static FlightRing* current() noexcept { return current_.load(std::memory_order_acquire); }

  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  /// Keeps a name in the file and returns its number. 0, no name, once there is no more room.
  SHERD_API uint32_t name(std::string_view text);
  /// Writes an entry, and returns its number for start() and end().
  SHERD_API uint64_t add(const Event& event, flight::State state = flight::State::started);
  /// Writes when something that was issued has started, and when it has ended. Nothing happens if
  /// the entry is overwritten by now.
  SHERD_API void start(uint64_t number);
  SHERD_API void end(uint64_t number, flight::State state = flight::State::finished);

  /// Begins a section of a program. `step` counts from 1, and from set_steps_before() on.
  void begin_section(std::string_view name, uint8_t kind, int64_t step);
  /// Steps are counted by a run; earlier processes have made some of them.
  SHERD_API void set_steps_before(int64_t steps);
  /// Writes that the step of the newest section has ended, and how long the host waited in it.
  void end_step();
  /// Returns the number of the section that was begun last.
  int32_t section() const { return section_.load(std::memory_order_relaxed); }

  /// The thread that moves messages is alive.
  void beat() noexcept;
  /// Writes why the rank ends, or can't go on. Only a more important reason replaces another.
  SHERD_API void mark(flight::Reason reason, const std::string& text) noexcept;
  /// In signal handlers: somebody has asked for a mark, or that the rank ends.
  static void note_asked() noexcept;
  static void note_stop(int signal) noexcept;

 private:
  FlightRing(char* data, const Options& options);
  flight::Header& header() { return *reinterpret_cast<flight::Header*>(data_); }
  flight::Entry& entry_of(uint64_t number);

  SHERD_API static std::atomic<FlightRing*> current_;

  char* data_;
  uint64_t entries_;
  std::atomic<int32_t> section_{-1};
  std::atomic<int64_t> steps_before_{0};
  std::atomic<int64_t> step_begin_{0};
  std::atomic<int64_t> waited_before_{0};  // this step
  std::mutex mark_mutex_;
  std::mutex names_mutex_;
  std::map<std::string, uint32_t, std::less<>> names_;
};

/// A scope in which SIGUSR2 leaves a mark in the ring; without a ring it does nothing.
class SHERD_API FlightSignal {
 public:
  FlightSignal();
  ~FlightSignal();
  FlightSignal(const FlightSignal&) = delete;
  FlightSignal& operator=(const FlightSignal&) = delete;

 private:
  void (*before_)(int);
};

}  // namespace sherd
