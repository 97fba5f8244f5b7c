// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shard/group/group.h"
#include "shard/unit/unit_settings.h"

namespace sherd {

class Unit;

/// A parameter of the module, and its position in the unit.
struct UnitParameter {
  at::Tensor parameter;
  size_t group = 0;
  size_t index = 0;
};

/// The parameters of a unit: their groups, and the nodes that receive their gradients. The module
/// owns the parameters, and the parameters keep the unit alive; this refers to them weakly.
class UnitMembers {
 public:
  /// Takes the candidates as parameters of `unit`, in groups by dtypes, mesh, axes, placement and
  /// trainability. Collective.
  void take(
      const std::vector<UnshardedParameter>& candidates,
      const UnitSettings& settings,
      const std::shared_ptr<Unit>& unit);
  /// Gives all parameters back to the module, whole. Collective.
  std::vector<UnshardedParameter> give_back(const std::string& unit_name);
  /// Names the unit in the groups' names and errors.
  void set_unit_name(const std::string& name);

  const std::vector<std::unique_ptr<Group>>& groups() const { return groups_; }
  /// Returns the parameters that are alive.
  std::vector<UnitParameter> parameters() const;

  /// Puts a node in place of each parameter's gradient accumulator, for the current stream.
  void prepare_nodes(const std::weak_ptr<Unit>& unit);
  /// Appends, for each parameter that was trainable when it was sharded, whether it is frozen now.
  void add_frozen(std::vector<bool>& frozen) const;
  /// Inside a backward: returns whether it brings a gradient to one of the parameters. Outside:
  /// whether one of them is trainable now.
  bool are_reached() const;

 private:
  struct Member {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    size_t group = 0;
    size_t index = 0;
    std::shared_ptr<torch::autograd::Node> node;
  };
  void attach(
      const at::Tensor& parameter, size_t group, size_t index, const std::shared_ptr<Unit>& unit);

  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Member> members_;
  std::vector<UnshardedParameter> as_given_;  // of each member, without the tensor: for give_back
  std::optional<c10::Stream> node_stream_;
};

}  // namespace sherd
