// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group_layout.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "kernels/fp8/encode.h"
#include "plan/group_shape.h"
#include "shard/outside_inference.h"

namespace sherd {
namespace {

/// Elements with one scale that is gathered with them; 0: none is.
int64_t gathered_block(Fp8 recipe) {
  if (recipe == Fp8::blocks) return kFp8Tile * kFp8Tile;
  return recipe == Fp8::mx ? kMxBlock : 0;
}

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
                         .element_size = static_cast<int64_t>(smallest),
                         .block = gathered_block(traits.fp8)});
}

WeightEncoding encoding_of(Fp8 recipe, size_t members) {
  switch (recipe) {
    case Fp8::none: break;
    case Fp8::rows:
    case Fp8::rows_wgrad16: return {.exchanged = static_cast<int64_t>(members), .transposes = true};
    case Fp8::blocks:
      return {.block = gathered_block(recipe), .scale_bytes = sizeof(float), .transposes = true};
    case Fp8::mx: return {.block = gathered_block(recipe), .scale_bytes = 1, .two_ways = true};
  }
  return {};
}

const char* text_of(Fp8 recipe) {
  switch (recipe) {
    case Fp8::none: return "";
    case Fp8::rows: return " fp8";
    case Fp8::rows_wgrad16: return " fp8_wgrad16";
    case Fp8::blocks: return " fp8_block";
    case Fp8::mx: return " mxfp8";
  }
  return "";
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
  spec.encoding = encoding_of(traits.fp8, layout.parameters().size());
  spec.trainable = traits.trainable;
  spec.shares_weight = !traits.trainable || dtypes.main == dtypes.model;
  spec.reduces_in_place = dtypes.reduce == dtypes.gradient;
  spec.layout = c10::str(
      dtypes.model, " ", dtypes.main, " ", dtypes.gradient, " ", dtypes.reduce, text_of(traits.fp8),
      " over ", traits.axes.inner, " ", traits.axes.outer);
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
  for (const auto& one : parameters) cuts_.push_back(one.cut);
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

std::vector<ModelBuffer> GroupLayout::model_buffers() const {
  std::vector<ModelBuffer> buffers{{traits_.dtypes.model, 1}};
  const auto& encoding = spec_.encoding;
  if (encoding.block > 0) {
    buffers.push_back({encoding.scale_bytes == 1 ? at::kByte : at::kFloat, encoding.block});
  }
  if (encoding.two_ways) buffers.insert(buffers.end(), {buffers[0], buffers[1]});
  return buffers;
}

int64_t GroupLayout::payload_bytes() const {
  return payload_offsets(spec_, spec_.encoding.two_ways).bytes;
}

std::vector<at::Tensor> GroupLayout::payload_views(const at::Tensor& bytes) const {
  const auto offsets = payload_offsets(spec_, spec_.encoding.two_ways);
  const std::array begins{int64_t{0}, offsets.scales, offsets.second_values, offsets.second_scales};
  std::vector<at::Tensor> views;
  for (const auto& [dtype, block] : model_buffers()) {
    const int64_t size = spec_.elements / block * static_cast<int64_t>(c10::elementSize(dtype));
    views.push_back(bytes.narrow(0, begins[views.size()], size).view(dtype));
  }
  return views;
}

std::vector<at::Tensor> GroupLayout::transposed_views(const at::Tensor& bytes) const {
  if (!spec_.encoding.transposes) return {};
  return payload_views(bytes);  // which is encoded in one way
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
    return buffer.storage.narrow(
        0, (range.offset + within) / buffer.block, piece.length / buffer.block);
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
    result.push_back(buffer.storage.narrow(0, offset / buffer.block, length / buffer.block));
  }
  return result;
}

PartBuffer GroupLayout::allocate(Part part, c10::ScalarType dtype, int64_t block) const {
  const OutsideInference normal;
  // Torch can't fill fp8 tensors with zeros; bytes of 0 encode 0.
  const auto options = at::TensorOptions().dtype(at::kByte).device(device());
  const int64_t size = flat_.part_size(part.count) / block;
  const auto bytes = size * static_cast<int64_t>(c10::elementSize(dtype));
  if (dtype == at::kFloat8_e4m3fn) return {at::zeros({bytes}, options).view(dtype), part, block};
  return {at::zeros({size}, options.dtype(dtype)), part, block};
}

std::vector<Transfer> pair_ranges(
    const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  std::vector<Transfer> result;
  for (size_t i = 0; i < outputs.size(); ++i) result.push_back({outputs[i], inputs[i]});
  return result;
}

}  // namespace sherd
