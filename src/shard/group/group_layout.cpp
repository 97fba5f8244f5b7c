// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group_layout.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "plan/group_shape.h"
#include "shard/outside_inference.h"

namespace sherd {
namespace {

Layout flat_layout(const GroupTraits& traits, const std::vector<UnshardedParameter>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const auto& one : parameters) {
    specs.push_back({one.name, one.parameter.sizes().vec(), one.granule});
  }
  size_t smallest = c10::elementSize(traits.dtypes.model);
  if (traits.trainable) {
    for (const auto dtype : {traits.dtypes.main, traits.dtypes.gradient, traits.dtypes.reduce}) {
      smallest = std::min(smallest, c10::elementSize(dtype));
    }
  }
  return Layout::build(
      std::move(specs), {.shards = traits.placement.shards(traits.axis_sizes()),
                         .element_size = static_cast<int64_t>(smallest)});
}

GroupSpec spec_of(const GroupTraits& traits, const Layout& layout) {
  const auto& dtypes = traits.dtypes;
  const auto size = [](c10::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  };
  GroupSpec spec;
  spec.elements = layout.full_size();
  spec.placement = traits.placement;
  spec.axis_sizes = traits.axis_sizes();
  spec.axes = {traits.axes.inner, traits.axes.outer};
  spec.has_outer = !traits.axes.outer.empty();
  spec.bytes = {size(dtypes.model), size(dtypes.main), size(dtypes.gradient), size(dtypes.reduce)};
  spec.trainable = traits.trainable;
  spec.shares_weight = !traits.trainable || dtypes.main == dtypes.model;
  spec.reduces_in_place = dtypes.reduce == dtypes.gradient;
  spec.layout = c10::str(
      dtypes.model, " ", dtypes.main, " ", dtypes.gradient, " ", dtypes.reduce, " over ",
      traits.axes.inner, " ", traits.axes.outer);
  for (const auto& parameter : layout.parameters()) {
    spec.layout += c10::str(
        ", ", parameter.name, " [", c10::Join(" ", parameter.shape), "] by ",
        parameter.granule.elements(parameter.shape));
  }
  return spec;
}

struct Range {
  int64_t offset = 0;
  int64_t length = 0;
};

/// Returns where part `wanted` of a segment is in the buffer of part `held`. Each segment of that
/// buffer holds neighbouring shards, so a smaller part is one range of it.
Range range_of(const Layout& layout, const Segment& segment, Part held, Part wanted) {
  TORCH_INTERNAL_ASSERT(
      wanted.count % held.count == 0 && wanted.index / (wanted.count / held.count) == held.index,
      "part ", wanted.index, " of ", wanted.count, " is not in part ", held.index, " of ",
      held.count);
  const int64_t length = segment.shard_size * layout.shards() / wanted.count;
  const int64_t within = wanted.index % (wanted.count / held.count);
  return {segment.offset / held.count + within * length, length};
}

}  // namespace

GroupLayout::GroupLayout(
    const GroupTraits& traits, const std::vector<UnshardedParameter>& parameters)
    : traits_(traits), flat_(flat_layout(traits, parameters)), spec_(spec_of(traits, flat_)) {
  using enum Spread;
  const auto coordinates = traits_.coordinates();
  inner_part_ = part_of({shard, replicate}, spec_.axis_sizes, coordinates);
  both_part_ = part_of({shard, shard}, spec_.axis_sizes, coordinates);
}

Part GroupLayout::part(Role role) const {
  return part_of(traits_.placement.spreads(role), spec_.axis_sizes, traits_.coordinates());
}

const Spreads& GroupLayout::main_spreads() const {
  return traits_.placement.spreads(traits_.trainable ? Role::optimizer : Role::parameter);
}

Part GroupLayout::main_part() const {
  return part_of(main_spreads(), spec_.axis_sizes, traits_.coordinates());
}

Part GroupLayout::accumulated_part() const {
  if (shards_gradients()) return part(Role::gradient);
  return optimizer_sharded(spec_) ? inner_part_ : whole();
}

bool GroupLayout::needs_gather() const {
  return gathers_inner(spec_);
}

bool GroupLayout::needs_refresh() const {
  return traits_.trainable && part(Role::parameter).count != part(Role::optimizer).count;
}

bool GroupLayout::shards_gradients() const {
  return gradient_sharded(spec_);
}

at::Tensor GroupLayout::view(const at::Tensor& full, size_t member) const {
  const auto number = static_cast<int64_t>(member);
  return full.narrow(0, flat_.offset(number), flat_.numel(number))
      .view(flat_.parameters()[member].shape);
}

at::Tensor GroupLayout::piece(const PartBuffer& buffer, Part wanted, size_t member) const {
  const auto number = static_cast<int64_t>(member);
  const auto piece = flat_.held_by(wanted, number);
  for (const auto& segment : flat_.segments()) {
    const auto& members = segment.parameters;
    if (std::find(members.begin(), members.end(), number) == members.end()) continue;
    const auto range = range_of(flat_, segment, buffer.part, wanted);
    const int64_t within = piece.length == 0 ? 0 : piece.offset - segment.offset / wanted.count;
    return buffer.storage.narrow(0, range.offset + within, piece.length);
  }
  return buffer.storage.narrow(0, 0, 0);  // a parameter without elements is in no segment
}

std::vector<at::Tensor> GroupLayout::pieces(const PartBuffer& buffer, Part wanted) const {
  std::vector<at::Tensor> result;
  for (size_t member = 0; member < size(); ++member) {
    result.push_back(piece(buffer, wanted, member));
  }
  return result;
}

std::vector<at::Tensor> GroupLayout::ranges(const PartBuffer& buffer, Part wanted) const {
  std::vector<at::Tensor> result;
  for (const auto& segment : flat_.segments()) {
    const auto [offset, length] = range_of(flat_, segment, buffer.part, wanted);
    result.push_back(buffer.storage.narrow(0, offset, length));
  }
  return result;
}

PartBuffer GroupLayout::allocate(Part part, c10::ScalarType dtype) const {
  const OutsideInference normal;
  const auto options = at::TensorOptions().dtype(dtype).device(device());
  return {at::zeros({flat_.part_size(part.count)}, options), part};
}

std::vector<Transfer> pair_ranges(
    const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  std::vector<Transfer> result;
  for (size_t i = 0; i < outputs.size(); ++i) result.push_back({outputs[i], inputs[i]});
  return result;
}

}  // namespace sherd
