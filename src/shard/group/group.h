// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shard/group/fp8_views.h"
#include "shard/group/gradient_inbox.h"
#include "shard/group/group_layout.h"
#include "shard/group/group_storage.h"
#include "shard/group/group_transfers.h"
#include "shard/group/parameter_views.h"

namespace sherd {

struct GroupReport;
struct ModelBytes;

/// The parameters of a unit that share dtype, mesh, placement and trainability, and its parts:
///   layout      where each parameter is in a flat buffer, and this rank's parts of such a buffer
///   storage     the buffers: model weight, main weight, main gradient
///   parameters  the module's parameters, which are views of the slot while the unit is gathered
///   fp8         the weights in fp8 that products read meanwhile
///   inbox       gradients that autograd delivers
///   transfers   the instructions of a program
class Group {
 public:
  /// Takes the parameters' values and makes the parameters views that are hidden. Collective.
  Group(
      std::string label,
      const GroupTraits& traits,
      const std::vector<UnshardedParameter>& parameters);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupLayout& layout() const { return layout_; }
  GroupStorage& storage() { return storage_; }
  const GroupStorage& storage() const { return storage_; }
  ParameterViews& parameters() { return parameters_; }
  const ParameterViews& parameters() const { return parameters_; }
  Fp8Views& fp8() { return fp8_; }
  const Fp8Views& fp8() const { return fp8_; }
  GradientInbox& inbox() { return inbox_; }
  const GradientInbox& inbox() const { return inbox_; }
  GroupTransfers& transfers() { return transfers_; }
  const GroupTransfers& transfers() const { return transfers_; }

  const std::string& label() const { return label_; }
  const GroupTraits& traits() const { return layout_.traits(); }
  size_t size() const { return layout_.size(); }
  const std::string& name(size_t member) const { return layout_.name(member); }
  /// Returns the group as the program's builder sees it.
  GroupSpec spec(const std::string& unit) const;
  /// Returns the group's sizes for groups(); the unit's name is left empty.
  GroupReport report() const;
  /// Adds the bytes of all that the group has allocated.
  void add_bytes(ModelBytes& bytes) const;

  /// Sets the unit's name for range_name().
  void set_unit_name(const std::string& unit);
  /// Returns the name of an instruction for profilers.
  const std::string& range_name(Action action) const {
    return range_names_[static_cast<size_t>(action)];
  }

  /// Shows the parameters: those in the slot, or the model weight where that is full. `backward`:
  /// with the transposed copies of fp8 weights.
  void show(bool backward);
  /// Shows parameters that were gathered into other memory, whose bytes these are; undefined: the
  /// model weight, which is full.
  void show_bytes(const at::Tensor& bytes);
  /// The same in the compute dtype, also for fp8 weights. Returns memory that must outlive this, if
  /// it had to be allocated.
  at::Tensor show_decoded(const at::Tensor& bytes);
  /// Hides the parameters. Eager slots are freed, unless their memory is kept.
  void hide(bool keeps_memory = false);

 private:
  std::string label_;
  std::vector<std::string> range_names_;  // by action
  GroupLayout layout_;
  GroupStorage storage_;
  ParameterViews parameters_;
  Fp8Views fp8_;
  GradientInbox inbox_;
  GroupTransfers transfers_;
};

}  // namespace sherd
