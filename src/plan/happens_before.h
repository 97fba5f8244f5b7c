// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "plan/text.h"
#include "sherd/plan/program.h"

namespace sherd {

/// The reason why the proof fails, as an exception; find_fault() adds the place in the program.
struct ProofFailure {
  std::string why;
};

template <class... Args>
[[noreturn]] void refuse(const Args&... args) {
  throw ProofFailure{text(args...)};
}

inline size_t index(int32_t number) {
  return static_cast<size_t>(number);
}

/// An access to a resource: its time and the instruction that made it.
struct Access {
  Stream stream{};
  int32_t tick = 0;  // 0: none yet
  Action action{};
};

/// The accesses to one slot, weight or gradient that a later access may conflict with.
struct Resource {
  Access write;
  std::array<Access, kStreams> reads{};  // the last of each stream
};

/// The happens-before order of instructions: which one is done before which other one starts,
/// whatever the timing of the streams. Vector clocks count the instructions of each stream, and
/// events carry clocks from stream to stream.
class HappensBefore {
 public:
  explicit HappensBefore(size_t events) : event_clock_(events) {}

  /// Begin and end an instruction; its accesses come between the two calls.
  void begin(const Instruction& instruction);
  void end(const Instruction& instruction);

  /// Each of these three refuses unless every conflicting access is done before. `what()` returns
  /// the name of the resource; it is called to refuse alone, because a proof has many accesses.
  template <class What>
  void read(Resource& resource, const What& what) {
    require_before(resource.write, what);
    resource.reads[static_cast<size_t>(current_.stream)] = current_;
  }
  template <class What>
  void write(Resource& resource, const What& what) {
    require_before(resource.write, what);
    for (const auto& earlier : resource.reads) require_before(earlier, what);
    resource.write = current_;
  }
  template <class What>
  void require_before(const Access& earlier, const What& what) const {
    if (!is_before(earlier)) refuse_after(earlier, what());
  }
  /// Refuses unless the instruction comes after everything that was issued on all streams.
  void require_rejoined() const;

 private:
  using Clock = std::array<int32_t, kStreams>;

  bool is_before(const Access& earlier) const;
  [[noreturn]] void refuse_after(const Access& earlier, const std::string& what) const;

  std::vector<Clock> event_clock_;
  std::array<Clock, kStreams> stream_clock_{};
  Clock ticks_{};
  Clock now_{};  // what is done before the instruction starts
  Access current_;
};

}  // namespace sherd
