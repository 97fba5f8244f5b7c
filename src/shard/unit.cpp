// SPDX-License-Identifier: Apache-2.0
#include "shard/unit.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>

#include "shard/glob.h"
#include "shard/parameter_node.h"
#include "shard/registry.h"
#include "shard/replace_data.h"
#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

/// What ties a unit's life to its parameters. Gradients accumulate only in those that were frozen
/// when they were sharded, and then it is called.
struct KeepUnit final : torch::autograd::PostAccumulateGradHook {
  explicit KeepUnit(std::shared_ptr<Unit> kept) : unit(std::move(kept)) {}
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

DataAxes default_axes(const Mesh& mesh) {
  return {"dp", mesh.has("dp_outer") ? "dp_outer" : ""};
}

/// What our kernels can't add or cast is refused before anything is changed.
void check_dtypes(const GroupTraits& traits, const std::string& name) {
  if (!traits.trainable) return;
  const auto& [model, main, gradient, reduce] = traits.dtypes;
  for (const auto& [role, dtype] :
       {std::pair("compute", model), std::pair("main weight", main),
        std::pair("main gradient", gradient), std::pair("reduce", reduce)}) {
    TORCH_CHECK_VALUE(
        is_float16_or_wider(dtype), "[shard] parameter '", name, "' is trainable, and its ", role,
        " dtype is ", dtype, ": use floating point of 16 bits or more, or freeze it");
  }
}

GroupTraits traits_of(
    const UnshardedParameter& candidate, const UnitOptions& options, const Mesh& mesh) {
  GroupTraits traits{
      .trainable = candidate.parameter.requires_grad(),
      .mesh = mesh,
      .axes = options.axes.value_or(default_axes(mesh)),
      .placement = options.placement};
  const auto* precision = &options.precision;
  for (const auto& rule : options.rules) {
    if (!matches_glob(rule.match, candidate.name)) continue;
    if (rule.mesh) {
      traits.mesh = *rule.mesh;
      traits.axes = default_axes(*rule.mesh);
    }
    if (rule.axes) traits.axes = *rule.axes;
    if (rule.placement) traits.placement = *rule.placement;
    if (rule.precision) precision = &*rule.precision;
  }
  traits.dtypes = resolve(*precision, candidate.dtype, traits.trainable);
  check_dtypes(traits, candidate.name);
  const auto& [inner, outer] = std::tie(traits.axes.inner, traits.axes.outer);
  TORCH_CHECK_VALUE(
      traits.mesh.has(inner) && (outer.empty() || traits.mesh.has(outer)), "[shard] parameter '",
      candidate.name, "' is to be sharded over the axes '", inner, "' and '", outer,
      "', which its mesh does not have: name its data-parallel axes");
  for (const auto& axis : traits.mesh.axes()) {
    // Whether ranks along another axis hold the same elements or others decides what a norm is.
    TORCH_CHECK_VALUE(
        axis.size == 1 || axis.name == inner || axis.name == outer || axis.name == "ep",
        "[shard] parameter '", candidate.name, "' has a mesh with the axis '", axis.name, "' of ",
        axis.size,
        " ranks, which is neither data-parallel nor 'ep' (experts): gradient norms are not defined "
        "over it; name it in options.axes if it is data-parallel, or leave it out of the mesh");
  }
  if (traits.axes.outer.empty()) {
    // Without an outer axis nothing can be spread over one.
    const auto& optimizer = traits.placement.spreads(Role::optimizer);
    TORCH_CHECK_VALUE(
        optimizer.outer == Spread::replicate, "[shard] parameter '", candidate.name,
        "' is to be sharded over an outer axis (", traits.placement.to_text(),
        "), but none is named: give the mesh an axis 'dp_outer', or name one in options.axes");
  }
  return traits;
}

}  // namespace

Unit::Unit(
    std::string name,
    UnitOptions options,
    std::optional<RootOptions> root_options,
    std::shared_ptr<const Mesh> mesh)
    : name_(std::move(name)),
      options_(std::move(options)),
      root_options_(root_options),
      prefetch_(options_.prefetch.begin(), options_.prefetch.end()),
      backward_prefetch_(options_.backward_prefetch.begin(), options_.backward_prefetch.end()),
      mesh_(std::move(mesh)),
      axes_(options_.axes.value_or(default_axes(*mesh_))) {
  static std::atomic<int64_t> units{0};
  sequence = units++;
  options_.prefetch.clear();
  options_.backward_prefetch.clear();
}

void Unit::check_no_root_options(const Unit& root) const {
  if (!root_options_) return;
  const RootOptions defaults;
  std::string set;
  const auto add = [&](const char* name, bool changed) {
    if (changed) set += (set.empty() ? "" : ", ") + std::string(name);
  };
  add("prefetch_depth", root_options_->prefetch_depth != defaults.prefetch_depth);
  add("loss", root_options_->loss != defaults.loss);
  add("memory", root_options_->memory != defaults.memory);
  add("symmetric", root_options_->symmetric != defaults.symmetric);
  add("budget", root_options_->budget != defaults.budget);
  TORCH_CHECK_VALUE(
      false, "[shard] unit '", name_, "' has root options", set.empty() ? "" : " (" + set + ")",
      ", but it is inside '", root.name(), "', whose options count: give them to fully_shard of '",
      root.name(), "' only");
}

Unit::~Unit() {
  if (runtime) runtime->drop(*this);
}

void Unit::take(const std::vector<UnshardedParameter>& candidates) {
  std::vector<GroupTraits> traits;
  std::vector<std::vector<UnshardedParameter>> sorted;
  for (auto candidate : candidates) {
    for (const auto& rule : options_.rules) {
      if (rule.granule && matches_glob(rule.match, candidate.name))
        candidate.granule = *rule.granule;
    }
    const auto mine = traits_of(candidate, options_, *mesh_);
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
      attach(sorted[group][index].parameter, group, index);
      rules_of_members_.push_back(sorted[group][index]);
      rules_of_members_.back().parameter.reset();
    }
  }
  set_name(name_);
}

void Unit::attach(const at::Tensor& parameter, size_t group, size_t index) {
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter, std::make_unique<KeepUnit>(shared_from_this()));
  members_.push_back(
      {c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()), group, index,
       nullptr});
  registry().add(parameter, shared_from_this(), group, index);
}

std::vector<UnshardedParameter> Unit::give_back() {
  const auto self = shared_from_this();  // the parameters hold it
  const c10::NoGradGuard no_grad;
  std::vector<UnshardedParameter> result;
  std::vector<at::Tensor> full;
  for (const auto& group : groups_) full.push_back(group->storage().gather_main_weight());
  for (size_t i = 0; i < members_.size(); ++i) {
    const auto& member = members_[i];
    auto impl = member.parameter.lock();
    TORCH_CHECK(impl.defined(), "[shard] a parameter of unit '", name_, "' is gone");
    const at::Tensor parameter(std::move(impl));
    auto candidate = rules_of_members_[i];
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
  rules_of_members_.clear();
  node_stream_.reset();
  return result;
}

void Unit::set_name(std::string name) {
  name_ = std::move(name);
  forward_range_ = "forward " + name_;
  backward_range_ = "backward " + name_;
  for (const auto& group : groups_) {
    group->set_unit_name(name_);
    group->parameters().set_message(c10::str(
        "[shard] the parameters of unit '", name_,
        "' are released: call the module through its holder (SHERD_MODULE) or sherd::call, and let "
        "values leave the unit as outputs; to read them, use sherd::full_parameters"));
  }
}

std::vector<UnitParameter> Unit::parameters() const {
  std::vector<UnitParameter> result;
  for (const auto& member : members_) {
    auto impl = member.parameter.lock();
    if (!impl.defined()) continue;
    result.push_back({at::Tensor(std::move(impl)), member.group, member.index});
  }
  return result;
}

UnitSpec Unit::spec() const {
  UnitSpec spec;
  spec.name = name_;
  for (const auto& group : groups_) spec.groups.push_back(group->spec(name_));
  spec.keep_gathered = options_.keep_gathered;
  return spec;
}

void Unit::prepare_nodes() {
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
    member.node =
        std::make_shared<ParameterNode>(parameter, weak_from_this(), member.group, member.index);
    torch::autograd::impl::set_grad_accumulator(parameter, member.node);
  }
}

void Unit::add_frozen(std::vector<bool>& frozen) const {
  for (const auto& member : members_) {
    if (!groups_[member.group]->traits().trainable) continue;
    const auto impl = member.parameter.lock();
    frozen.push_back(impl.defined() && !impl->requires_grad());
  }
}

bool Unit::is_reached() const {
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

void Unit::show() {
  for (const auto& group : groups_) group->show();
  gathered = true;
}

void Unit::hide(bool keeps_memory) {
  for (const auto& group : groups_) group->hide(keeps_memory);
  gathered = false;
  gathered_outside.reset();
}

void Unit::enter(Phase now) {
  phase = now;
  if (calls++ == 0) range_.begin(now == Phase::forward ? forward_range_ : backward_range_);
}

void Unit::rest() noexcept {
  phase = Phase::resting;
  calls = 0;
  collecting = false;
  range_.end();
}

void Unit::leave() {
  if (--calls > 0) return;
  phase = Phase::resting;
  range_.end();
  // What rests whole is hidden as well: a call that bypasses the boundary is an error for every
  // strategy. Gathered groups are hidden by their release.
  for (const auto& group : groups_) {
    if (!group->layout().needs_gather()) group->hide();
  }
}

void Unit::receive(size_t group, size_t member, const at::Tensor& gradient) {
  TORCH_CHECK(
      collecting, "[shard] a gradient of parameter '", groups_[group]->name(member), "' of unit '",
      name_,
      "' comes when its gradients are already reduced, or outside any backward of the root: use "
      "the unit's outputs alone outside it");
  groups_[group]->inbox().receive(member, gradient);
}

}  // namespace sherd
