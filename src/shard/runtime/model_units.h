// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "shard/unit/unit.h"
#include "sherd/plan/program.h"

namespace sherd {

/// The units of one model, by their numbers in the program: inner ones first, the root last.
///
/// It holds none of them: units hold the runtime, which holds this. A unit that is deleted leaves
/// an empty place.
class ModelUnits {
 public:
  /// Finds all units inside the root's module and gives each its number, and the path of its module
  /// as name. Throws if one is in the middle of another root's step or has options of a root, and
  /// for patterns in their options that match nothing (check_patterns_match).
  explicit ModelUnits(Unit& root);

  const std::vector<Unit*>& all() const { return units_; }
  auto begin() const { return units_.begin(); }
  auto end() const { return units_.end(); }
  size_t size() const { return units_.size(); }
  Unit& operator[](int32_t number) const { return *units_[static_cast<size_t>(number)]; }
  Group& group(const Instruction& instruction) const {
    return *(*this)[instruction.unit].groups()[static_cast<size_t>(instruction.group)];
  }
  Unit& root() const { return *units_.back(); }
  bool has_root() const { return units_.back() != nullptr; }
  /// Forgets a unit that is being deleted.
  void drop(const Unit& unit) noexcept;
  /// Throws if a unit was deleted.
  void check_none_deleted() const;
  /// Units without parameters live as long as one that has some.
  void keep_parameterless_units_alive();

  /// The order of calls before any was seen: each unit once, by the unit around it.
  CallOrder default_order() const { return order_of_tree(parents_); }
  /// What a program needs to know of them. Throws if a unit is to prefetch what it can't.
  std::vector<UnitSpec> specs() const;
  /// The number of ranks whose losses are averaged; 1: they are summed. It is that of the root's
  /// mesh, all ranks of the world, whatever the mesh of a group: the gradient of a part of a
  /// parameter is a sum over the ranks that hold it, of losses of all ranks.
  double loss_divisor() const;

  // ---- parameters --------------------------------------------------------------------------

  /// The name of a unit's parameter in the root's module.
  std::string full_name(const Unit& unit, const std::string& name) const;
  /// Returns whether each of the parameters that were trainable when they were sharded is frozen
  /// now, in the order of trainable_only(parameter_shards()).
  std::vector<bool> frozen() const;
  /// Inside a backward: whether it brings a gradient to a parameter. Outside: whether any parameter
  /// is trainable now.
  bool is_reached() const;
  /// Throws, naming it, if a parameter has no values.
  void check_initialised() const;

 private:
  std::vector<Unit*> units_;
  std::vector<int32_t> parents_;  // of each: the unit around it
};

}  // namespace sherd
