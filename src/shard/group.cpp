// SPDX-License-Identifier: Apache-2.0
#include "shard/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "kernels/keyed_fill.h"
#include "plan/group_shape.h"
#include "shard/outside_inference.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {
namespace {

PerAxis<int64_t> sizes_of(const GroupTraits& traits) {
  const auto& [mesh, axes] = std::tie(traits.mesh, traits.axes);
  return {mesh.size(axes.inner), axes.outer.empty() ? 1 : mesh.size(axes.outer)};
}

PerAxis<int64_t> coordinates_of(const GroupTraits& traits) {
  const auto& [mesh, axes] = std::tie(traits.mesh, traits.axes);
  return {mesh.coordinate(axes.inner), axes.outer.empty() ? 0 : mesh.coordinate(axes.outer)};
}

std::shared_ptr<const Layout> layout_of(
    const GroupTraits& traits, const std::vector<Candidate>& candidates) {
  std::vector<ParameterSpec> specs;
  for (const auto& candidate : candidates) {
    specs.push_back({candidate.name, candidate.parameter.sizes().vec(), candidate.granule});
  }
  size_t smallest = c10::elementSize(traits.dtypes.model);
  if (traits.trainable) {
    for (const auto dtype : {traits.dtypes.main, traits.dtypes.gradient, traits.dtypes.reduce}) {
      smallest = std::min(smallest, c10::elementSize(dtype));
    }
  }
  return std::make_shared<const Layout>(Layout::build(
      std::move(specs), {.shards = traits.placement.shards(sizes_of(traits)),
                         .element_size = static_cast<int64_t>(smallest)}));
}

c10::Device device_of(const GroupTraits& traits) {
  return traits.mesh.world().device();
}

}  // namespace

bool GroupTraits::same_as(const GroupTraits& other) const {
  return dtypes == other.dtypes && trainable == other.trainable && placement == other.placement &&
         axes.inner == other.axes.inner && axes.outer == other.axes.outer &&
         &mesh.communicator(axes.inner) == &other.mesh.communicator(other.axes.inner);
}

std::vector<std::string> GroupTraits::norm_axes() const {
  std::vector<std::string> result;
  const auto& spreads = placement.spreads(Role::optimizer);
  if (spreads.inner == Spread::shard) result.push_back(axes.inner);
  if (spreads.outer == Spread::shard) result.push_back(axes.outer);
  if (mesh.has("ep")) result.emplace_back("ep");  // every rank of it has other experts
  return result;
}

Group::Group(std::string label, const GroupTraits& traits, std::vector<Candidate> candidates)
    : label_(std::move(label)),
      traits_(traits),
      layout_(layout_of(traits, candidates)),
      device_(device_of(traits)),
      sizes_(sizes_of(traits)),
      flat_(
          layout_->full_size() * static_cast<int64_t>(c10::elementSize(traits.dtypes.model)),
          device_) {
  const OutsideInference normal;
  const auto coordinates = coordinates_of(traits_);
  using enum Spread;
  inner_ = part_of({shard, replicate}, sizes_, coordinates);
  both_ = part_of({shard, shard}, sizes_, coordinates);
  shares_weight_ = !traits_.trainable || traits_.dtypes.main == traits_.dtypes.model;
  model_ = {
      allocate(layout_->part_size(part(Role::parameter).count), traits_.dtypes.model),
      part(Role::parameter)};
  if (shares_weight_) {
    main_ = model_;
  } else {
    main_ = {
        allocate(layout_->part_size(part(Role::optimizer).count), traits_.dtypes.main),
        part(Role::optimizer)};
  }
  for (size_t member = 0; member < candidates.size(); ++member) {
    const auto& name = candidates[member].name;
    const auto& parameter = candidates[member].parameter;
    names_.push_back(name);
    uninitialised_.push_back(parameter.is_meta());
    if (!uninitialised_.back()) take_member(member, values_of_first_rank(parameter));
    // Own version counters: what the optimizer writes can be told from what Sherd writes.
    main_pieces_.push_back(
        held_run(*layout_, main_, part(Role::optimizer), static_cast<int64_t>(member))
            .variable_data());
  }
  flat_.set(model_.storage.mutable_data_ptr());  // views are made of a storage that has data
  for (size_t member = 0; member < candidates.size(); ++member) {
    auto& parameter = candidates[member].parameter;
    const auto sizes = parameter.sizes().vec();
    auto full = at::empty({0}, model_.storage.options());
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t dim = sizes.size(); dim-- > 1;) {
      strides[dim - 1] = strides[dim] * std::max<int64_t>(sizes[dim], 1);
    }
    const int64_t offset = layout_->offset(static_cast<int64_t>(member));
    if (device_.is_meta()) {
      // There set_ insists on a storage that it could resize.
      full.unsafeGetTensorImpl()->set_storage_keep_dtype(flat_.storage());
      full.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    } else {
      full.set_(flat_.storage(), offset, sizes, strides);
    }
    parameter.mutable_grad() = at::Tensor();
    views_.push_back(full);
    point(parameter, full);
  }
  flat_.poison();
  written_.assign(names_.size(), false);
}

void Group::set_unit_name(const std::string& unit) {
  range_names_.clear();
  for (size_t action = 0; action < kActions; ++action) {
    range_names_.push_back(c10::str(to_text(static_cast<Action>(action)), " ", unit, "/", label_));
  }
}

/// Ranks may have been built with other values: those of the first rank of each axis are
/// everybody's.
at::Tensor Group::values_of_first_rank(const at::Tensor& parameter) const {
  const auto values = parameter.detach().reshape({-1}).to(device_);
  for (const auto& axis : {traits_.axes.inner, traits_.axes.outer}) {
    if (axis.empty() || values.numel() == 0) continue;
    traits_.mesh.communicator(axis).broadcast(values, 0).synchronize();
  }
  return values;
}

void Group::take_member(size_t member, const at::Tensor& values) {
  for (const auto* held : {&model_, shares_weight_ ? nullptr : &main_}) {
    if (!held) continue;
    const auto piece = layout_->held_by(held->part, static_cast<int64_t>(member));
    held->storage.narrow(0, piece.offset, piece.length)
        .copy_(values.narrow(0, piece.begin, piece.length));
  }
  uninitialised_[member] = false;
}

void Group::fill_member(size_t member, uint64_t key, const KeyedValues& values) {
  for (const auto* held : {&model_, shares_weight_ ? nullptr : &main_}) {
    if (!held) continue;
    const auto piece = layout_->held_by(held->part, static_cast<int64_t>(member));
    auto* data = static_cast<char*>(held->storage.mutable_data_ptr()) +
                 piece.offset * held->storage.element_size();
    fill_keyed(
        {data, held->storage.scalar_type(), piece.begin, piece.length, key, values}, device_);
  }
  uninitialised_[member] = false;
}

std::optional<std::string> Group::uninitialised() const {
  const auto found = std::find(uninitialised_.begin(), uninitialised_.end(), true);
  if (found == uninitialised_.end()) return std::nullopt;
  return names_[static_cast<size_t>(found - uninitialised_.begin())];
}

void Group::point(const at::Tensor& parameter, const at::Tensor& data) {
  // set_data refuses to leave the meta device; what it checks beyond that does not apply here.
  parameter.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

Part Group::part(Role role) const {
  return part_of(traits_.placement.spreads(role), sizes_, coordinates_of(traits_));
}

at::Tensor Group::allocate(int64_t elements, c10::ScalarType dtype) const {
  const OutsideInference normal;
  return at::zeros({elements}, at::TensorOptions().dtype(dtype).device(device_));
}

GroupSpec Group::spec(const std::string& unit) const {
  const auto size = [](c10::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  };
  GroupSpec spec;
  spec.name = unit + "/" + label_;
  spec.elements = layout_->full_size();
  spec.placement = traits_.placement;
  spec.axis_sizes = sizes_;
  spec.axes = {traits_.axes.inner, traits_.axes.outer};
  spec.has_outer = !traits_.axes.outer.empty();
  spec.bytes = {
      size(traits_.dtypes.model), size(traits_.dtypes.main), size(traits_.dtypes.gradient),
      size(traits_.dtypes.reduce)};
  spec.trainable = traits_.trainable;
  spec.shares_weight = shares_weight_;
  spec.reduces_in_place = traits_.dtypes.reduce == traits_.dtypes.gradient;
  spec.layout = c10::str(
      traits_.dtypes.model, " ", traits_.dtypes.main, " ", traits_.dtypes.gradient, " ",
      traits_.dtypes.reduce, " over ", traits_.axes.inner, " ", traits_.axes.outer);
  for (const auto& parameter : layout_->parameters()) {
    spec.layout += c10::str(
        ", ", parameter.name, " [", c10::Join(" ", parameter.shape), "] by ",
        parameter.granule.elements(parameter.shape));
  }
  return spec;
}

bool Group::gathers() const {
  return traits_.placement.spreads(Role::parameter).inner == Spread::shard;
}

bool Group::refreshes() const {
  return traits_.trainable && part(Role::parameter).count != part(Role::optimizer).count;
}

bool Group::gradients_are_sharded() const {
  return traits_.placement.spreads(Role::gradient).inner == Spread::shard;
}

void Group::show() {
  flat_.set(gathers() ? slot_.mutable_data_ptr() : model_.storage.mutable_data_ptr());
}

void Group::hide(bool keeps_memory) {
  flat_.poison();
  if (keeps_memory || !place_.eager || !slot_.defined()) return;
  slot_.reset();
  gather_ = {};
}

void Group::allocate_gradient() {
  if (!traits_.trainable || gradient_.storage.defined()) return;
  const auto mine = part(Role::gradient);
  gradient_ = {allocate(layout_->part_size(mine.count), traits_.dtypes.gradient), mine};
  for (size_t member = 0; member < names_.size(); ++member) {
    gradient_pieces_.push_back(
        held_run(*layout_, gradient_, part(Role::optimizer), static_cast<int64_t>(member))
            .variable_data());
  }
}

void Group::add_bytes(ModelBytes& bytes) const {
  const auto of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
  };
  bytes.model_weights += of(model_.storage);
  if (!shares_weight_) bytes.main_weights += of(main_.storage);
  bytes.main_gradients += of(gradient_.storage);
  if (place_.eager) bytes.arena += of(slot_) + of(gradient_slot_);
}

GroupReport Group::report() const {
  GroupReport report;
  report.group = label_;
  report.parameters = std::ssize(names_);
  for (int64_t member = 0; member < report.parameters; ++member) {
    report.elements += layout_->numel(member);
  }
  report.padding = layout_->full_size() - report.elements;
  const auto add = [&](int64_t& bytes, const Part& held, c10::ScalarType dtype) {
    const auto size = static_cast<int64_t>(c10::elementSize(dtype));
    int64_t used = 0;
    for (int64_t member = 0; member < report.parameters; ++member) {
      used += layout_->held_by(held, member).length;
    }
    bytes = layout_->part_size(held.count) * size;
    report.padding_bytes += bytes - used * size;
  };
  add(report.model_bytes, model_.part, traits_.dtypes.model);
  if (!shares_weight_) add(report.main_bytes, main_.part, traits_.dtypes.main);
  if (traits_.trainable) add(report.gradient_bytes, part(Role::gradient), traits_.dtypes.gradient);
  if (gathers()) add(report.gathered_bytes, whole_, traits_.dtypes.model);
  return report;
}

void Group::publish() {
  if (shares_weight_) return;
  // Only this rank's part; the rest comes with the next refresh.
  const auto mine = part(Role::optimizer);
  const auto targets = runs(*layout_, model_, mine);
  const auto sources = runs(*layout_, main_, mine);
  deposit(deposits(targets, sources), {traits_.dtypes.model, traits_.dtypes.main, 1}, device_);
}

at::Tensor Group::model_piece(size_t member) const {
  if (shares_weight_) return {};
  return held_run(*layout_, model_, part(Role::optimizer), static_cast<int64_t>(member));
}

Group::Like Group::allocate_like_main(c10::ScalarType dtype) const {
  const auto mine = part(Role::optimizer);
  Like result{allocate(layout_->part_size(mine.count), dtype), {}};
  for (size_t member = 0; member < names_.size(); ++member) {
    result.pieces.push_back(
        held_run(*layout_, {result.storage, mine}, mine, static_cast<int64_t>(member)));
  }
  return result;
}

void Group::divide_gradient(double divisor) const {
  const auto mine = runs(*layout_, gradient_, part(Role::optimizer));
  deposit(
      deposits(mine, mine), {traits_.dtypes.gradient, traits_.dtypes.gradient, divisor}, device_);
}

at::Tensor Group::full_main() const {
  const auto mine = part(Role::optimizer);
  PartBuffer full{allocate(layout_->full_size(), traits_.dtypes.main), whole_};
  const auto copy = [](const std::vector<Transfer>& transfers) {
    for (const auto& [output, input] : transfers) output.copy_(input);
  };
  copy(pair_runs(runs(*layout_, full, mine), runs(*layout_, main_, mine)));
  const auto& spreads = traits_.placement.spreads(Role::optimizer);
  if (spreads.outer == Spread::shard) {
    const auto transfers = pair_runs(runs(*layout_, full, inner_), runs(*layout_, full, both_));
    traits_.mesh.communicator(traits_.axes.outer).all_gather(transfers).synchronize();
  }
  if (spreads.inner == Spread::shard) {
    const auto transfers = pair_runs(runs(*layout_, full, whole_), runs(*layout_, full, inner_));
    traits_.mesh.communicator(traits_.axes.inner).all_gather(transfers).synchronize();
  }
  return full.storage;
}

at::Tensor Group::view(const at::Tensor& full, size_t member) const {
  const auto& spec = layout_->parameters()[member];
  const auto number = static_cast<int64_t>(member);
  return full.narrow(0, layout_->offset(number), layout_->numel(number)).view(spec.shape);
}

Group::Stored Group::stored(size_t member) const {
  // Frozen weights are never refreshed, so each rank must have its whole part of them.
  const auto& spreads =
      traits_.placement.spreads(traits_.trainable ? Role::optimizer : Role::parameter);
  const auto coordinates = coordinates_of(traits_);
  const auto mine = part_of(spreads, sizes_, coordinates);
  const auto number = static_cast<int64_t>(member);
  Stored result;
  result.piece = held_run(*layout_, main_, mine, number);
  result.begin = layout_->held_by(mine, number).begin;
  const auto repeat = [&](Spread spread, int64_t size, int64_t coordinate) {
    if (spread == Spread::shard) return;
    result.replica = result.replica * size + coordinate;
    result.replicas *= size;
  };
  repeat(spreads.outer, std::max<int64_t>(1, sizes_.outer), coordinates.outer);
  repeat(spreads.inner, std::max<int64_t>(1, sizes_.inner), coordinates.inner);
  return result;
}

void Group::take_main(const at::Tensor& full) {
  const PartBuffer all{full, whole_};
  for (const auto* held : {&main_, &model_}) {
    const auto from = runs(*layout_, all, held->part);
    const auto to = runs(*layout_, *held, held->part);
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  std::fill(uninitialised_.begin(), uninitialised_.end(), false);
}

}  // namespace sherd
