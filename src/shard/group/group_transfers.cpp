// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group_transfers.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "plan/group_shape.h"
#include "shard/outside_inference.h"

namespace sherd {
namespace {

template <class T>
const T& of_axis(const PerAxis<T>& both, AxisKind axis) {
  return axis == AxisKind::outer ? both.outer : both.inner;
}

constexpr Part kWhole{0, 1};

}  // namespace

// ---- slots --------------------------------------------------------------------------------------

at::Tensor GroupTransfers::arena_view(int64_t offset, Part part, c10::ScalarType dtype) const {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = layout_.flat().part_size(part.count) * size;
  return addresses_.arena.narrow(0, offset, bytes).view(dtype);
}

/// Allocates as many bytes as the program counts, which aligns slots.
at::Tensor GroupTransfers::allocate_slot(int64_t bytes) const {
  const OutsideInference normal;
  const auto options = at::TensorOptions().dtype(c10::kByte).device(layout_.device());
  return at::zeros({aligned_slot(bytes)}, options);
}

std::vector<at::Tensor> GroupTransfers::full_parameters() const {
  if (layout_.needs_gather()) return parameters_;
  std::vector<at::Tensor> result;
  for (const auto& buffer : storage_.model_weight()) result.push_back(buffer.storage);
  return result;
}

void GroupTransfers::bind(
    const GroupAddresses& addresses, const GroupCommunicators& communicators, double divisor) {
  const auto& traits = layout_.traits();
  addresses_ = addresses;
  communicators_ = communicators;
  divisor_ = divisor;
  parameter_slot_.reset();
  transposed_slot_.reset();
  gradient_slot_.reset();
  // A unit that no order calls has no slots.
  if (!addresses.eager && layout_.needs_gather() && addresses.parameters != kNone) {
    parameter_slot_ = addresses.arena.narrow(0, addresses.parameters, layout_.payload_bytes());
  }
  if (!addresses.eager && addresses.transposed != kNone && layout_.spec().encoding.transposes) {
    transposed_slot_ = addresses.arena.narrow(0, addresses.transposed, layout_.payload_bytes());
  }
  prepare_parameters();
  prepare_transpositions();
  storage_.allocate_main_gradient();
  if (!traits.trainable) return;
  if (!addresses.eager && layout_.shards_gradients() && addresses.gradients != kNone) {
    gradient_slot_ = arena_view(addresses.gradients, kWhole, traits.dtypes.reduce);
  }
  prepare_gradients();
}

void GroupTransfers::unbind() {
  addresses_ = {};
  parameter_slot_.reset();
  parameters_.clear();
  transposed_slot_.reset();
  transposed_.clear();
  gradient_slot_.reset();
  gather_ = {};
  gather_two_ways_ = {};
  transpositions_.clear();
  scale_transpositions_.clear();
  reduce_scatter_ = {};
  all_reduce_ = {};
  inbox_.set_buffer({});
}

void GroupTransfers::allocate_parameter_slot() {
  if (!addresses_.eager || !layout_.needs_gather() || parameter_slot_.defined()) return;
  parameter_slot_ = allocate_slot(layout_.payload_bytes());
  prepare_parameters();
}

void GroupTransfers::free_parameter_slot() {
  if (!addresses_.eager || !parameter_slot_.defined()) return;
  parameter_slot_.reset();
  parameters_.clear();
  gather_ = {};
  gather_two_ways_ = {};
}

void GroupTransfers::allocate_transposed_slot() {
  const bool needed = addresses_.eager && layout_.spec().encoding.transposes;
  if (!needed) return;
  if (!transposed_slot_.defined()) transposed_slot_ = allocate_slot(layout_.payload_bytes());
  prepare_transpositions();  // the parameters may have another address
}

void GroupTransfers::free_transposed_slot() {
  if (!addresses_.eager || !transposed_slot_.defined()) return;
  transposed_slot_.reset();
  prepare_transpositions();
}

void GroupTransfers::allocate_gradient_slot() {
  if (!addresses_.eager || !layout_.traits().trainable || !layout_.shards_gradients()) return;
  const auto dtype = layout_.traits().dtypes.reduce;
  const int64_t bytes = layout_.flat().full_size() * static_cast<int64_t>(c10::elementSize(dtype));
  gradient_slot_ = allocate_slot(bytes).narrow(0, 0, bytes).view(dtype);
  prepare_gradients();
}

void GroupTransfers::free_gradient_slot() {
  if (!addresses_.eager || !gradient_slot_.defined()) return;
  gradient_slot_.reset();
  prepare_gradients();
}

int64_t GroupTransfers::eager_bytes() const {
  if (!addresses_.eager) return 0;
  int64_t bytes = 0;
  for (const auto* slot : {&parameter_slot_, &transposed_slot_, &gradient_slot_}) {
    if (slot->defined()) bytes += static_cast<int64_t>(slot->storage().nbytes());
  }
  return bytes;
}

// ---- preparing instructions ---------------------------------------------------------------------

/// Full buffers of a slot, as parts.
std::vector<PartBuffer> GroupTransfers::slot_buffers(const std::vector<at::Tensor>& full) const {
  const auto kinds = layout_.model_buffers();
  std::vector<PartBuffer> result;
  for (size_t i = 0; i < full.size(); ++i) result.push_back({full[i], kWhole, kinds[i].block});
  return result;
}

void GroupTransfers::prepare_parameters() {
  const auto& model = storage_.model_weight();
  const auto inner = layout_.inner_part();
  const auto both = layout_.both_part();
  using Buffers = std::vector<PartBuffer>;
  const auto pair = [&](const Buffers& to, Part large, const Buffers& from, Part small,
                        size_t count) {
    std::vector<Transfer> result;
    for (size_t i = 0; i < count; ++i) {
      for (auto& one : pair_ranges(layout_.ranges(to[i], large), layout_.ranges(from[i], small))) {
        result.push_back(std::move(one));
      }
    }
    return result;
  };
  refresh_ = {};
  gather_ = {};
  gather_two_ways_ = {};
  parameters_.clear();
  if (parameter_slot_.defined()) {
    parameters_ = layout_.payload_views(parameter_slot_);
    const auto slot = slot_buffers(parameters_);
    const bool outer = gathers_outer(layout_.spec());
    const auto prepare = [&](PerAxis<std::vector<Transfer>>& transfers, size_t count) {
      if (outer) transfers.outer = pair(slot, inner, model, both, count);
      transfers.inner = pair(slot, kWhole, outer ? slot : model, inner, count);
    };
    const bool two_ways = layout_.spec().encoding.two_ways;
    prepare(gather_, two_ways ? model.size() / 2 : model.size());
    if (two_ways) prepare(gather_two_ways_, model.size());
  }
  if (!layout_.traits().trainable) return;
  const size_t all = model.size();
  if (refreshes_outer(layout_.spec())) refresh_.outer = pair(model, inner, model, both, all);
  if (refreshes_inner(layout_.spec())) refresh_.inner = pair(model, kWhole, model, inner, all);
}

void GroupTransfers::prepare_transpositions() {
  transpositions_.clear();
  scale_transpositions_.clear();
  transposed_.clear();
  const auto full = full_parameters();
  if (!transposed_slot_.defined() || full.empty()) return;
  transposed_ = layout_.transposed_views(transposed_slot_);
  if (layout_.device().is_meta()) return;
  const auto& flat = layout_.flat();
  for (int64_t i = 0; i < std::ssize(flat.parameters()); ++i) {
    const auto& shape = flat.parameters()[static_cast<size_t>(i)].shape;
    const auto place = [&](const at::Tensor& buffer, int64_t block) {
      return static_cast<char*>(buffer.mutable_data_ptr()) +
             flat.offset(i) / block * buffer.element_size();
    };
    transpositions_.push_back({place(transposed_[0], 1), place(full[0], 1), shape[0], shape[1]});
    if (full.size() == 1) continue;
    const int64_t block = layout_.spec().encoding.block;
    scale_transpositions_.push_back(
        {place(transposed_[1], block), place(full[1], block), shape[0] / kFp8Tile,
         shape[1] / kFp8Tile});
  }
}

// The full gradients of a pass are in the slot (where they are sharded), or those of the step in
// the main gradient. Reductions are in place: this rank's part of what is reduced is where the
// result goes. Where the reduce dtype differs, the main gradient is copied to a stage first.
void GroupTransfers::prepare_gradients() {
  reduce_scatter_ = {};
  all_reduce_ = {};
  stage_ = {};
  accumulate_ = {};
  inbox_.set_buffer({});
  const bool sharded = layout_.shards_gradients();
  if (sharded && !gradient_slot_.defined()) return;  // not needed now
  if (sharded) {
    prepare_sharded_gradients();
  } else {
    prepare_replicated_gradients();
  }
  const auto& spec = layout_.spec();
  if (spec.has_outer && !gradient_sharded_outer(spec)) prepare_outer_gradients();
  inbox_.set_buffer(sharded ? gradient_slot_ : storage_.main_gradient().storage);
}

void GroupTransfers::prepare_sharded_gradients() {
  const auto& dtypes = layout_.traits().dtypes;
  const auto& gradient = storage_.main_gradient();
  const PartBuffer slot{gradient_slot_, kWhole};
  const auto in_slot = [&](Part part) { return layout_.ranges(slot, part); };
  const auto inner = layout_.inner_part();
  const bool outer = gradient_sharded_outer(layout_.spec());
  reduce_scatter_.inner = pair_ranges(in_slot(inner), in_slot(kWhole));
  if (outer) reduce_scatter_.outer = pair_ranges(in_slot(layout_.both_part()), in_slot(inner));
  const auto mine = layout_.accumulated_part();
  auto& accumulation = outer ? accumulate_.outer : accumulate_.inner;
  accumulation = {
      cast_copies(layout_.ranges(gradient, mine), in_slot(mine)),
      {dtypes.gradient, dtypes.reduce, divisor_}};
}

void GroupTransfers::prepare_replicated_gradients() {
  const auto& dtypes = layout_.traits().dtypes;
  const auto& gradient = storage_.main_gradient();
  PartBuffer reduced = gradient;
  if (!layout_.spec().reduces_in_place) {
    reduced = {arena_view(addresses_.stage_reduce, kWhole, dtypes.reduce), kWhole};
    stage_.inner = cast_copies(layout_.ranges(reduced, kWhole), layout_.ranges(gradient, kWhole));
  }
  if (optimizer_sharded(layout_.spec())) {
    reduce_scatter_.inner =
        pair_ranges(layout_.ranges(reduced, layout_.inner_part()), layout_.ranges(reduced, kWhole));
  } else {
    all_reduce_.inner = layout_.ranges(reduced, kWhole);
  }
  const auto mine = layout_.accumulated_part();
  accumulate_.inner = {
      cast_copies(layout_.ranges(gradient, mine), layout_.ranges(reduced, mine)),
      {dtypes.gradient, dtypes.reduce, divisor_}};
}

/// The reduction over the outer axis of gradients that are not sharded over it: of the step's, in
/// the main gradient.
void GroupTransfers::prepare_outer_gradients() {
  const auto& dtypes = layout_.traits().dtypes;
  const auto& gradient = storage_.main_gradient();
  const Part mine = optimizer_sharded(layout_.spec()) ? layout_.inner_part() : kWhole;
  const bool scatters = optimizer_sharded_outer(layout_.spec());
  const Part result = scatters ? layout_.both_part() : mine;
  PartBuffer reduced = gradient;
  if (!layout_.spec().reduces_in_place) {
    reduced = {arena_view(addresses_.stage_outer, mine, dtypes.reduce), mine};
    stage_.outer = cast_copies(layout_.ranges(reduced, mine), layout_.ranges(gradient, mine));
    accumulate_.outer = {
        cast_copies(layout_.ranges(gradient, result), layout_.ranges(reduced, result)),
        {dtypes.gradient, dtypes.reduce, 1}};  // the inner accumulation has divided
  }
  if (scatters) {
    reduce_scatter_.outer =
        pair_ranges(layout_.ranges(reduced, layout_.both_part()), layout_.ranges(reduced, mine));
  } else {
    all_reduce_.outer = layout_.ranges(reduced, mine);
  }
}

// ---- instructions -------------------------------------------------------------------------------

Work GroupTransfers::refresh(AxisKind axis, Communicator::OnStream stream) const {
  return of_axis(communicators_.gather, axis)->all_gather(of_axis(refresh_, axis), stream);
}

Work GroupTransfers::gather(AxisKind axis, bool two_ways, Communicator::OnStream stream) const {
  const auto& transfers = two_ways ? gather_two_ways_ : gather_;
  return of_axis(communicators_.gather, axis)->all_gather(of_axis(transfers, axis), stream);
}

void GroupTransfers::transpose() const {
  sherd::transpose(transpositions_, sizeof(uint8_t), layout_.device());
  sherd::transpose(scale_transpositions_, sizeof(float), layout_.device());
}

Work GroupTransfers::reduce(AxisKind axis, bool scatter, Communicator::OnStream stream) const {
  auto& communicator = *of_axis(communicators_.reduce, axis);
  const auto sum = Reduction::sum();
  if (scatter) return communicator.reduce_scatter(of_axis(reduce_scatter_, axis), sum, stream);
  return communicator.all_reduce(of_axis(all_reduce_, axis), sum, stream);
}

void GroupTransfers::stage(AxisKind axis) const {
  const auto& dtypes = layout_.traits().dtypes;
  cast_copy(of_axis(stage_, axis), {dtypes.reduce, dtypes.gradient, 1}, layout_.device());
}

void GroupTransfers::accumulate(AxisKind axis, bool overwrite) const {
  // Gradients that are sharded over both axes come from the slot after the outer reduction.
  const bool outer = axis == AxisKind::outer || accumulate_.inner.copies.empty();
  const auto& [copies, kind] = outer ? accumulate_.outer : accumulate_.inner;
  const bool is_in_place = overwrite && kind.divisor == 1 && kind.target == kind.source &&
                           !copies.empty() && copies.front().target == copies.front().source;
  if (is_in_place) return;
  if (overwrite) return cast_copy(copies, kind, layout_.device());
  auto adding = copies;
  for (auto& one : adding) one.add = true;
  cast_copy(adding, kind, layout_.device());
}

bool GroupTransfers::accumulates_after(AxisKind axis) const {
  return axis != AxisKind::outer && !accumulate_.inner.copies.empty() &&
         !accumulate_.outer.copies.empty();
}

// On the communicators of reductions; see Note [Following].
void GroupTransfers::refresh_now() const {
  const auto& [inner, outer] = communicators_.reduce;
  if (!refresh_.outer.empty()) outer->all_gather(refresh_.outer).synchronize();
  if (!refresh_.inner.empty()) inner->all_gather(refresh_.inner).synchronize();
}

at::Tensor GroupTransfers::gather_now() const {
  const auto& model = storage_.model_weight();
  const OutsideInference normal;
  const auto bytes = at::zeros(
      {layout_.payload_bytes()}, at::TensorOptions().dtype(c10::kByte).device(layout_.device()));
  const auto full = slot_buffers(layout_.payload_views(bytes));
  std::vector<Transfer> outer, all;
  for (size_t i = 0; i < full.size(); ++i) {
    const auto in_full = [&](Part part) { return layout_.ranges(full[i], part); };
    for (const auto& [output, input] :
         pair_ranges(in_full(model[i].part), layout_.ranges(model[i], model[i].part))) {
      output.copy_(input);
    }
    const auto inner = layout_.inner_part();
    for (auto& one : pair_ranges(in_full(inner), in_full(layout_.both_part()))) {
      outer.push_back(std::move(one));
    }
    for (auto& one : pair_ranges(in_full(kWhole), in_full(inner))) all.push_back(std::move(one));
  }
  if (gathers_outer(layout_.spec())) communicators_.reduce.outer->all_gather(outer).synchronize();
  communicators_.reduce.inner->all_gather(all).synchronize();
  return bytes;
}

}  // namespace sherd
