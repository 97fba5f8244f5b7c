// SPDX-License-Identifier: Apache-2.0
#include "shard/unit/unit_members.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "shard/registry.h"
#include "shard/replace_data.h"
#include "shard/unit/parameter_node.h"
#include "shard/unit/unit.h"

namespace sherd {
namespace {

/// A hook of a parameter that keeps its unit alive. Gradients accumulate only in parameters that
/// were frozen when they were sharded, and then it is called.
struct KeepUnit final : torch::autograd::PostAccumulateGradHook {
  explicit KeepUnit(std::shared_ptr<Unit> owner) : unit(std::move(owner)) {}
  void operator()(const torch::autograd::Variable& parameter) override {
    const auto owner = find_owner(parameter);
    TORCH_CHECK(
        false, "[shard] parameter '", unit->groups()[owner.group]->name(owner.member),
        "' of unit '", unit->name(),
        "' was frozen when it was sharded and is trained now: set requires_grad before "
        "fully_shard");
  }
  std::shared_ptr<Unit> unit;
};

}  // namespace

void UnitMembers::take(
    const std::vector<UnshardedParameter>& candidates,
    const UnitSettings& settings,
    const std::shared_ptr<Unit>& unit) {
  std::vector<GroupTraits> traits;
  std::vector<std::vector<UnshardedParameter>> sorted;
  for (auto candidate : candidates) {
    candidate.cut = settings.cut_of(candidate);
    candidate.granule = settings.granule_of(candidate);
    const auto mine = settings.traits_of(candidate);
    size_t group = 0;
    while (group < traits.size() && !traits[group].same_as(mine)) ++group;
    if (group == traits.size()) {
      traits.push_back(mine);
      sorted.emplace_back();
    }
    sorted[group].push_back(std::move(candidate));
  }
  for (size_t group = 0; group < traits.size(); ++group) {
    auto label = c10::str(
        c10::toString(traits[group].dtypes.model), traits[group].trainable ? "" : ".frozen",
        group == 0 ? "" : c10::str(".", group));
    groups_.push_back(std::make_unique<Group>(std::move(label), traits[group], sorted[group]));
    for (size_t index = 0; index < sorted[group].size(); ++index) {
      attach(sorted[group][index].parameter, group, index, unit);
      as_given_.push_back(sorted[group][index]);
      as_given_.back().parameter.reset();
    }
  }
  set_unit_name(settings.name());
}

void UnitMembers::attach(
    const at::Tensor& parameter, size_t group, size_t index, const std::shared_ptr<Unit>& unit) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<KeepUnit>(unit));
  members_.push_back(
      {c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), group, index,
       nullptr});
  registry().add(parameter, unit, group, index);
}

std::vector<UnshardedParameter> UnitMembers::give_back(const std::string& unit_name) {
  const c10::NoGradGuard no_grad;
  std::vector<UnshardedParameter> result;
  std::vector<at::Tensor> full;
  for (const auto& group : groups_) full.push_back(group->storage().gather_main_weight());
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto& member = members_[i];
    auto impl = member.parameter.lock();
    TORCH_CHECK(impl.defined(), "[shard] a parameter of unit '", unit_name, "' is gone");
    const at::Tensor parameter(std::move(impl));
    auto candidate = as_given_[i];
    candidate.parameter = parameter;
    registry().remove(parameter);
    const auto& group = *groups_[member.group];
    replace_data(
        parameter,
        group.storage().is_uninitialised(member.index)
            ? at::empty(
                  parameter.sizes(), at::TensorOptions().dtype(candidate.dtype).device(c10::kMeta))
            : group.layout()
                  .view(full[member.group], member.index)
                  .clone());  // in the main dtype: nothing is rounded
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    if (parameter.requires_grad()) torch::autograd::impl::set_grad_accumulator(parameter, {});
    result.push_back(std::move(candidate));
  }
  groups_.clear();
  members_.clear();
  as_given_.clear();
  node_stream_.reset();
  return result;
}

void UnitMembers::set_unit_name(const std::string& name) {
  for (const auto& group : groups_) {
    group->set_unit_name(name);
    group->parameters().set_unit_name(name);
  }
}

std::vector<UnitParameter> UnitMembers::parameters() const {
  std::vector<UnitParameter> result;
  for (const auto& member : members_) {
    auto impl = member.parameter.lock();
    if (!impl.defined()) continue;
    result.push_back({at::Tensor(std::move(impl)), member.group, member.index});
  }
  return result;
}

void UnitMembers::prepare_nodes(const std::weak_ptr<Unit>& unit) {
  if (members_.empty()) return;
  const auto device = groups_.front()->traits().mesh.world().device();
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (node_stream_ == stream) return;
  node_stream_ = stream;
  for (auto& member : members_) {
    if (!groups_[member.group]->traits().trainable) continue;
    auto impl = member.parameter.lock();
    if (!impl.defined()) continue;
    const at::Tensor parameter(std::move(impl));
    member.node = std::make_shared<ParameterNode>(parameter, unit, member.group, member.index);
    torch::autograd::impl::set_grad_accumulator(parameter, member.node);
  }
}

void UnitMembers::add_frozen(std::vector<bool>& frozen) const {
  for (const auto& member : members_) {
    if (!groups_[member.group]->traits().trainable) continue;
    const auto impl = member.parameter.lock();
    frozen.push_back(impl.defined() && !impl->requires_grad());
  }
}

bool UnitMembers::are_reached() const {
  // Null, or empty, where autograd computes all gradients there are. autograd::grad and a backward
  // with `inputs` name the nodes that they need.
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  const bool all = !wanted || wanted->empty();
  for (const auto& member : members_) {
    if (!groups_[member.group]->traits().trainable) continue;
    const auto impl = member.parameter.lock();
    if (!impl.defined() || !impl->requires_grad()) continue;
    if (all) return true;
    const auto found = wanted->find(member.node.get());
    if (found != wanted->end() && found->second.needed_) return true;
  }
  return false;
}

}  // namespace sherd
