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
at::Tensor GroupTransfers::allocate_slot(c10::ScalarType dtype) const {
  const OutsideInference normal;
  const int64_t bytes = layout_.flat().full_size() * static_cast<int64_t>(c10::elementSize(dtype));
  const auto options = at::TensorOptions().dtype(c10::kByte).device(layout_.device());
  return at::zeros({aligned_slot(bytes)}, options).narrow(0, 0, bytes).view(dtype);
}

void GroupTransfers::bind(
    const GroupAddresses& addresses, const GroupCommunicators& communicators, double divisor) {
  const auto& traits = layout_.traits();
  addresses_ = addresses;
  communicators_ = communicators;
  divisor_ = divisor;
  parameter_slot_.reset();
  gradient_slot_.reset();
  // A unit that no order calls has no slots.
  if (!addresses.eager && layout_.needs_gather() && addresses.parameters != kNone) {
    parameter_slot_ = arena_view(addresses.parameters, kWhole, traits.dtypes.model);
  }
  prepare_parameters();
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
  gradient_slot_.reset();
  gather_ = {};
  reduce_scatter_ = {};
  all_reduce_ = {};
  inbox_.set_buffer({});
}

void GroupTransfers::allocate_parameter_slot() {
  if (!addresses_.eager || !layout_.needs_gather() || parameter_slot_.defined()) return;
  parameter_slot_ = allocate_slot(layout_.traits().dtypes.model);
  prepare_parameters();
}

void GroupTransfers::free_parameter_slot() {
  if (!addresses_.eager || !parameter_slot_.defined()) return;
  parameter_slot_.reset();
  gather_ = {};
}

void GroupTransfers::allocate_gradient_slot() {
  if (!addresses_.eager || !layout_.traits().trainable || !layout_.shards_gradients()) return;
  gradient_slot_ = allocate_slot(layout_.traits().dtypes.reduce);
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
  for (const auto* slot : {&parameter_slot_, &gradient_slot_}) {
    if (slot->defined()) bytes += static_cast<int64_t>(slot->storage().nbytes());
  }
  return bytes;
}

// ---- preparing instructions ---------------------------------------------------------------------

void GroupTransfers::prepare_parameters() {
  const auto& model = storage_.model_weight();
  const auto inner = layout_.inner_part();
  const auto both = layout_.both_part();
  const auto pair = [&](const PartBuffer& to, Part large, const PartBuffer& from, Part small) {
    return pair_ranges(layout_.ranges(to, large), layout_.ranges(from, small));
  };
  refresh_ = {};
  gather_ = {};
  if (parameter_slot_.defined()) {
    const PartBuffer slot{parameter_slot_, kWhole};
    const bool outer = gathers_outer(layout_.spec());
    if (outer) gather_.outer = pair(slot, inner, model, both);
    gather_.inner = pair(slot, kWhole, outer ? slot : model, inner);
  }
  if (!layout_.traits().trainable) return;
  if (refreshes_outer(layout_.spec())) refresh_.outer = pair(model, inner, model, both);
  if (refreshes_inner(layout_.spec())) refresh_.inner = pair(model, kWhole, model, inner);
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

Work GroupTransfers::gather(AxisKind axis, Communicator::OnStream stream) const {
  return of_axis(communicators_.gather, axis)->all_gather(of_axis(gather_, axis), stream);
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
  const auto full = layout_.allocate(kWhole, layout_.traits().dtypes.model);
  const auto in_full = [&](Part part) { return layout_.ranges(full, part); };
  for (const auto& [output, input] :
       pair_ranges(in_full(model.part), layout_.ranges(model, model.part))) {
    output.copy_(input);
  }
  const auto inner = layout_.inner_part();
  if (gathers_outer(layout_.spec())) {
    communicators_.reduce.outer
        ->all_gather(pair_ranges(in_full(inner), in_full(layout_.both_part())))
        .synchronize();
  }
  communicators_.reduce.inner->all_gather(pair_ranges(in_full(kWhole), in_full(inner)))
      .synchronize();
  return full.storage;
}

}  // namespace sherd
