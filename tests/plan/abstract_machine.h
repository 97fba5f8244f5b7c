// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/gradient_sum.h"
#include "plan/timeline.h"

namespace sherd::testing {

// Note [The abstract machine]
// It runs a timeline on four queues and knows, instead of numbers, what every number stands for: of
// a weight which version, of a gradient which calls of which passes, how often reduced over which
// axis, how often divided. An instruction has a start and an end; what it reads must be right when
// it starts, what it writes is there when it ends, and what overlaps with it must leave its memory
// alone. It was written from the comments of program.h and shares nothing with the proof.

/// What went wrong on an interleaving.
struct Violation {
  std::string section;
  int32_t instruction = kNone;  ///< in the section; kNone: at its end
  std::string why;
  std::string to_text() const;
};

/// What the bytes of a cell mean.
struct Content {
  enum class Kind : uint8_t { nothing, piece, parameters, transposed, gradients };
  Kind kind{};
  int32_t group = kNone;
  int32_t version = 0;  ///< of parameters
  Sum sum{};            ///< of gradients
  friend bool operator==(const Content&, const Content&) = default;
};

/// The state of a run. Copies are independent. Members throw a Violation.
class AbstractMachine {
 public:
  explicit AbstractMachine(const Timeline& timeline);

  bool running(size_t stream) const { return running_[stream]; }
  bool can_start(size_t stream) const;
  /// The next instruction of the stream, an index into issued(); it must exist.
  int32_t next(size_t stream) const {
    return timeline_->queue(stream)[static_cast<size_t>(done_[stream])];
  }
  void start(size_t stream);
  void finish(size_t stream);
  /// For a run in the order of issue: nothing may be left over when a section ends.
  void end_section(int32_t section);
  uint64_t hash() const;

 private:
  struct Cell {
    Content content;
    int32_t holder = kNone;  // whoever still needs it
  };
  /// Holders: a group's parameters, their transposed copies, its gradients in their slot, or in a
  /// stage.
  enum class Holder : uint8_t { parameters, transposed, gradients, stage };

  bool is_done(int32_t issued) const;
  [[noreturn]] void fail(const Issued& issued, const std::string& why) const;
  size_t group_count() const { return timeline_->groups().size(); }
  int32_t holder(Holder kind, int32_t group) const {
    return static_cast<int32_t>(kind) * static_cast<int32_t>(group_count()) + group;
  }
  int32_t holder_of(const Issued& issued, const Use& use) const;
  std::string holder_name(int32_t holder) const;
  void take(const Issued& issued, const Use& use);
  void occupy(const Use& use, int by);
  // machine_actions.cpp: what each instruction needs to find, and what it leaves behind.
  void check(const Issued& issued);
  void check_parameters(const Issued& issued) const;
  void check_cells(const Issued& issued, const Use& use, const Content& like) const;
  void check_update(const Issued& issued) const;
  void apply(const Issued& issued);
  void apply_to_group(const Issued& issued);
  void gather(const Issued& issued);
  void compute(const Issued& issued);
  void reduce(const Issued& issued);
  void accumulate(const Issued& issued);
  void change_weights(const Issued& issued);
  void exchange(const Issued& issued);
  void fill(const Use& use, const Content& content);
  void give_up(const Issued& issued, const Use& use);

  const Timeline* timeline_;
  std::array<int32_t, kStreams> done_{};
  std::array<bool, kStreams> running_{};
  std::vector<Cell> cells_;
  std::vector<std::array<int32_t, 3>> weights_;  // by group and piece: its version
  std::vector<int32_t> main_weights_;
  std::vector<std::array<int32_t, 2>> scales_;  // by group and axis: the version they are known of
  std::vector<Sum> main_gradients_;
  std::vector<int32_t> computing_;  // by unit: the `wait` since which it computes
  std::vector<int32_t> computed_;   // by unit: how often
  int updated_ = 0;                 // how often
  std::vector<int16_t> readers_;    // by resource, now
  std::vector<int16_t> writers_;
};

}  // namespace sherd::testing
