// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/symmetric.h"
#include "shard/diagnostics/recorder.h"
#include "shard/program_streams.h"
#include "shard/runtime/model_units.h"
#include "sherd/plan/program.h"

namespace sherd {

/// A program with what it needs to run: the arena, its registrations, the streams and events, and
/// the communicators. The groups of the units are bound to it.
class BoundProgram {
 public:
  BoundProgram(const World& world, const ModelUnits& units) : world_(world), units_(units) {}

  /// Binds another program, in place of the one before. `before_move` is called if the arena gets
  /// another address: whatever points into the old one lets go of it. The caller has finished the
  /// streams.
  template <class F>
  void bind(std::shared_ptr<const Program> program, const F& before_move) {
    program_ = std::move(program);
    if (!fits_arena()) {
      before_move();
      move_arena();
    }
    bind_streams();
    bind_groups();
  }

  const Program& operator*() const { return *program_; }
  const Program* operator->() const { return program_.get(); }
  const std::shared_ptr<const Program>& shared() const { return program_; }
  ProgramStreams& streams() const { return *streams_; }
  bool has_streams() const { return streams_ != nullptr; }
  void set_recorder(std::shared_ptr<Recorder> recorder);
  const std::shared_ptr<Recorder>& recorder() const { return recorder_; }
  /// Full parameters and gradients are allocated one by one. Without memory there is no need to.
  bool is_eager() const {
    return program_->options().memory == MemoryKind::eager && !world_.device().is_meta();
  }
  /// What the compute stream has been given so far is the publication of the weights: the next
  /// gathers come after it.
  void signal_published() const;

  int64_t arena_bytes() const;
  /// Returns which communicators the arena is registered with; empty if with none.
  std::string symmetric_report() const;

 private:
  std::pair<int64_t, int64_t> arena_range() const;
  bool fits_arena() const;
  void move_arena();
  void bind_streams();
  void bind_groups();
  Communicator* link(const Mesh& mesh, const std::string& axis, const char* purpose);
  GroupCommunicators links_of(const GroupTraits& traits);

  World world_;
  const ModelUnits& units_;
  std::shared_ptr<const Program> program_;
  std::unique_ptr<ProgramStreams> streams_;
  std::shared_ptr<Recorder> recorder_;
  at::Tensor arena_;
  std::vector<std::unique_ptr<Window>> windows_;  // of the arena, if it is symmetric
  std::string symmetric_text_;
  std::map<std::pair<const Communicator*, std::string>, std::shared_ptr<Communicator>> links_;
};

}  // namespace sherd
