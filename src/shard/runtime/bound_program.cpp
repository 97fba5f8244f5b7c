// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/bound_program.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <set>
#include <tuple>

namespace sherd {

void BoundProgram::set_recorder(std::shared_ptr<Recorder> recorder) {
  recorder_ = std::move(recorder);
  streams_->set_recorder(recorder_);
}

void BoundProgram::signal_published() const {
  streams_->signal(program_->update().instructions.back().signals);
}

int64_t BoundProgram::arena_bytes() const {
  return arena_.defined() ? static_cast<int64_t>(arena_.storage().nbytes()) : 0;
}

std::string BoundProgram::symmetric_report() const {
  if (windows_.empty()) return "";
  return c10::str(
      "the arena of ", arena_.numel(), " bytes is registered with ", windows_.size(),
      " communicators; ", symmetric_text_);
}

/// Returns the first address of the program that lies in the arena, and the size of the arena in
/// bytes. With eager memory the arena has the stages alone; groups allocate the rest.
std::pair<int64_t, int64_t> BoundProgram::arena_range() const {
  if (program_->options().memory == MemoryKind::planned) {
    const int64_t bytes = program_->bytes().arena;
    return {0, units_.root().root_options().symmetric ? symmetric_bytes(bytes) : bytes};
  }
  int64_t begin = 0;
  int64_t bytes = 0;
  for (const auto& slot : program_->slots()) {
    if (is_eager() && slot.name.rfind("stage", 0) != 0) continue;
    if (bytes == 0) begin = slot.offset;
    bytes = slot.offset + slot.bytes - begin;
  }
  return {begin, bytes};
}

bool BoundProgram::fits_arena() const {
  return arena_.defined() && arena_.numel() == arena_range().second;
}

void BoundProgram::move_arena() {
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) group->transfers().unbind();
  }
  windows_.clear();
  arena_.reset();
  const auto device = world_.device();
  const auto& root = units_.root();
  const int64_t bytes = arena_range().second;
  if (!root.root_options().symmetric || device.is_meta()) {
    arena_ = at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    return;
  }
  TORCH_CHECK_VALUE(
      program_->options().memory == MemoryKind::planned, "[shard] the memory of '", root.name(),
      "' is to be symmetric and eager: what is registered has one address; set RootOptions::memory "
      "= planned");
  arena_ = symmetric_memory(bytes, device).zero_();
  std::set<Communicator*> known;
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) {
      const auto links = links_of(group->traits());
      for (auto* link :
           {links.gather.inner, links.reduce.inner, links.gather.outer, links.reduce.outer}) {
        if (!link || !known.insert(link).second) continue;
        windows_.push_back(register_window(*link, arena_));
        symmetric_text_ = symmetric_text(*link);
      }
    }
  }
}

void BoundProgram::bind_streams() {
  if (streams_ && streams_->events() == program_->events().size()) return;
  streams_ = std::make_unique<ProgramStreams>(world_.device(), program_->events().size());
  streams_->set_recorder(recorder_);
}

void BoundProgram::bind_groups() {
  const bool eager = is_eager();
  const int64_t begin = arena_range().first;
  const auto offset = [&](int32_t slot, int64_t inside) {
    if (slot == kNone) return int64_t{kNone};
    return program_->slots()[static_cast<size_t>(slot)].offset - begin + inside;
  };
  const auto named = [&](const char* name) {
    for (const auto& slot : program_->slots()) {
      if (slot.name == name) return slot.offset - begin;
    }
    return int64_t{kNone};
  };
  for (const auto* unit : units_) {
    const auto& slots = program_->slots_of(unit->number());
    for (size_t i = 0; i < unit->groups().size(); ++i) {
      auto& group = *unit->groups()[i];
      group.transfers().bind(
          {arena_, eager, offset(slots.parameters, slots.parameter_offsets[i]),
           offset(slots.transposed, slots.transposed_offsets[i]),
           offset(slots.gradients, slots.gradient_offsets[i]), named("stage.reduce"),
           named("stage.outer")},
          links_of(group.traits()), units_.loss_divisor());
    }
  }
}

// Operations of one communicator run in order, so a gather must not share one with a reduction that
// it need not wait for. On CUDA all is enqueued in the order of the program, so models on one mesh
// can share them. On CPU a stream's next collective starts when the host looks, which is another
// time on every rank: there each model has its own.
Communicator* BoundProgram::link(const Mesh& mesh, const std::string& axis, const char* purpose) {
  if (world_.device().is_cuda()) return &mesh.communicator(axis, purpose);
  auto& own = links_[{&mesh.communicator(axis), purpose}];
  if (!own) own = mesh.new_communicator(axis, purpose);
  return own.get();
}

GroupCommunicators BoundProgram::links_of(const GroupTraits& traits) {
  const auto& [mesh, axes] = std::tie(traits.mesh, traits.axes);
  GroupCommunicators links;
  links.gather.inner = link(mesh, axes.inner, "gather");
  links.reduce.inner = link(mesh, axes.inner, "reduce");
  if (axes.outer.empty()) return links;
  // Their own: another group's inner axis may be this one, on another stream.
  links.gather.outer = link(mesh, axes.outer, "gather.outer");
  links.reduce.outer = link(mesh, axes.outer, "reduce.outer");
  return links;
}

}  // namespace sherd
