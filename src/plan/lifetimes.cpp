// SPDX-License-Identifier: Apache-2.0
#include "plan/lifetimes.h"

#include <algorithm>

#include "plan/group_shape.h"

namespace sherd {
namespace {

/// Follows one section.
class Follower {
 public:
  Follower(
      const Program& program,
      const ArenaBuffers& buffers,
      int32_t number,
      std::vector<Lifetime>& lifetimes)
      : program_(program),
        buffers_(buffers),
        number_(number),
        lifetimes_(lifetimes),
        gathered_(program.units().size(), kNone),
        transposed_(program.units().size(), kNone),
        opened_(program.units().size(), kNone),
        touched_(program.units().size()) {}

  void follow(const Section& section) {
    const auto last = static_cast<int32_t>(section.instructions.size()) - 1;
    if (last < 0) return;
    if (section.kind == Section::Kind::forward && section.still_gathered) hold_what_is_gathered();
    for (int32_t i = 0; i <= last; ++i) {
      const auto& instruction = section.instructions[index(i)];
      if (instruction.unit == kNone) continue;
      follow(section, instruction, i, last);
    }
    for (const auto& lifetime : waiting_) lifetimes_.push_back(lifetime);
    for (int32_t unit = 0; unit < std::ssize(gathered_); ++unit) {
      if (gathered_[index(unit)] != kNone)
        add(buffers_.parameters(unit), gathered_[index(unit)], last);
    }
    add(buffers_.stage_reduce(), 0, last);
    add(buffers_.stage_outer(), 0, last);
  }

 private:
  static size_t index(int32_t number) { return static_cast<size_t>(number); }
  void add(int32_t buffer, int32_t begin, int32_t end) {
    lifetimes_.push_back({buffer, number_, begin, end});
  }

  /// Gathered since an earlier forward, whether this one calls them or not.
  void hold_what_is_gathered() {
    for (const auto& visit : program_.order()) {
      if (program_.units()[index(visit.unit)].keep_gathered) gathered_[index(visit.unit)] = 0;
    }
  }

  void follow(const Section& section, const Instruction& instruction, int32_t here, int32_t last) {
    const int32_t unit = instruction.unit;
    auto& gathered = gathered_[index(unit)];
    switch (instruction.action) {
      case Action::gather:
        if (gathered == kNone) gathered = here;
        touched_[index(unit)] = true;
        break;
      case Action::wait:  // gathered since an earlier section
        if (instruction.slot != kNone && gathered == kNone) {
          gathered = touched_[index(unit)] ? here : 0;
        }
        touched_[index(unit)] = true;
        break;
      case Action::transpose:
        if (transposed_[index(unit)] == kNone) transposed_[index(unit)] = here;
        break;
      case Action::release:
        if (instruction.slot == program_.slots_of(unit).transposed) {
          add(buffers_.transposed(unit), transposed_[index(unit)], here);
          transposed_[index(unit)] = kNone;
          break;
        }
        add(buffers_.parameters(unit), gathered, here);
        gathered = kNone;
        break;
      case Action::open: opened_[index(unit)] = here; break;
      case Action::compute:
        if (section.kind != Section::Kind::backward || instruction.signals == kNone) break;
        for (auto& lifetime : waiting_) {
          lifetime.end = here;
          lifetimes_.push_back(lifetime);
        }
        waiting_.clear();
        if (opened_[index(unit)] != kNone) {
          waiting_.push_back({buffers_.gradients(unit), number_, opened_[index(unit)], last});
        }
        break;
      default: break;
    }
  }

  const Program& program_;
  const ArenaBuffers& buffers_;
  int32_t number_;
  std::vector<Lifetime>& lifetimes_;
  std::vector<int32_t> gathered_;  // by unit: since which instruction
  std::vector<int32_t> transposed_;
  std::vector<int32_t> opened_;
  std::vector<bool> touched_;
  std::vector<Lifetime> waiting_;  // gradients under reduction
};

}  // namespace

Needs needs_of(const std::vector<UnitSpec>& units) {
  Needs needs;
  for (const auto& unit : units) {
    SlotAssignment assignment;
    int64_t parameters = 0;
    int64_t transposed = 0;
    int64_t gradients = 0;
    for (const auto& group : unit.groups) {
      assignment.parameter_offsets.push_back(parameters);
      assignment.transposed_offsets.push_back(transposed);
      assignment.gradient_offsets.push_back(gradients);
      if (gathers_inner(group)) parameters += payload_offsets(group, group.encoding.two_ways).bytes;
      if (group.encoding.transposes) transposed += payload_offsets(group, false).bytes;
      if (!group.trainable) continue;
      if (gradient_sharded(group)) gradients += aligned_slot(group.elements * group.bytes.reduce);
      if (group.reduces_in_place) continue;
      if (!gradient_sharded(group)) {
        needs.stage_reduce =
            std::max(needs.stage_reduce, aligned_slot(group.elements * group.bytes.reduce));
      }
      if (group.has_outer && !gradient_sharded_outer(group)) {
        const int64_t part = inner_part(group, Role::optimizer);
        needs.stage_outer = std::max(needs.stage_outer, aligned_slot(part * group.bytes.reduce));
      }
    }
    needs.assignments.push_back(std::move(assignment));
    needs.parameters.push_back(parameters);
    needs.transposed.push_back(transposed);
    needs.gradients.push_back(gradients);
  }
  return needs;
}

ArenaBuffers::ArenaBuffers(const Needs& needs)
    : units_(static_cast<int32_t>(needs.parameters.size())), bytes_(needs.parameters) {
  bytes_.insert(bytes_.end(), needs.transposed.begin(), needs.transposed.end());
  bytes_.insert(bytes_.end(), needs.gradients.begin(), needs.gradients.end());
  bytes_.push_back(needs.stage_reduce);
  bytes_.push_back(needs.stage_outer);
}

std::vector<Lifetime> lifetimes_of(const Program& program, const ArenaBuffers& buffers) {
  std::vector<Lifetime> lifetimes;
  int32_t number = 0;
  for (const auto* section : program.sections()) {
    if (section->kind == Section::Kind::update) continue;
    Follower(program, buffers, number++, lifetimes).follow(*section);
  }
  return lifetimes;
}

}  // namespace sherd
