// SPDX-License-Identifier: Apache-2.0
// What a group does in a step: its instructions, prepared once.
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "plan/group_shape.h"
#include "shard/group.h"
#include "shard/outside_inference.h"

namespace sherd {
namespace {

template <class T>
const T& of_axis(const PerAxis<T>& both, AxisKind axis) {
  return axis == AxisKind::outer ? both.outer : both.inner;
}

/// Gradients below this are copied together, so that small ones don't cost a launch each.
constexpr int64_t kCopyTogether = int64_t{4} << 20;

}  // namespace

at::Tensor Group::in_arena(int64_t offset, Part part, c10::ScalarType dtype) const {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return place_.arena.narrow(0, offset, layout_->part_size(part.count) * size).view(dtype);
}

/// As many bytes as the program counts: to the alignment of slots.
at::Tensor Group::take(c10::ScalarType dtype) const {
  const OutsideInference normal;
  const int64_t bytes = layout_->full_size() * static_cast<int64_t>(c10::elementSize(dtype));
  const auto all =
      at::zeros({aligned_slot(bytes)}, at::TensorOptions().dtype(c10::kByte).device(device_));
  return all.narrow(0, 0, bytes).view(dtype);
}

void Group::bind(const GroupPlace& place, const GroupLinks& links, double divisor) {
  place_ = place;
  links_ = links;
  divisor_ = divisor;
  slot_.reset();
  gradient_slot_.reset();
  // A unit that no order calls has no place.
  if (!place.eager && gathers() && place.parameters != kNone) {
    slot_ = in_arena(place.parameters, whole_, traits_.dtypes.model);
  }
  bind_parameters();
  allocate_gradient();
  if (!traits_.trainable) return;
  if (!place.eager && gradients_are_sharded() && place.gradients != kNone) {
    gradient_slot_ = in_arena(place.gradients, whole_, traits_.dtypes.reduce);
  }
  bind_gradients();
}

void Group::take_parameters() {
  if (!place_.eager || !gathers() || slot_.defined()) return;
  slot_ = take(traits_.dtypes.model);
  bind_parameters();
}

void Group::take_gradients() {
  if (!place_.eager || !traits_.trainable || !gradients_are_sharded()) return;
  gradient_slot_ = take(traits_.dtypes.reduce);
  bind_gradients();
}

void Group::drop_gradients() {
  if (!place_.eager || !gradient_slot_.defined()) return;
  gradient_slot_.reset();
  bind_gradients();
}

void Group::unbind() {
  place_ = {};
  slot_.reset();
  gradient_slot_.reset();
  gather_ = {};
  scatter_ = {};
  all_reduce_ = {};
  targets_.clear();
}

void Group::bind_parameters() {
  const auto in = [&](const PartBuffer& buffer, Part wanted) {
    return runs(*layout_, buffer, wanted);
  };
  refresh_ = {};
  gather_ = {};
  const auto group = spec("");
  if (slot_.defined()) {
    const PartBuffer slot{slot_, whole_};
    const bool outer = gathers_outer(group);
    if (outer) gather_.outer = pair_runs(in(slot, inner_), in(model_, both_));
    gather_.inner = pair_runs(in(slot, whole_), outer ? in(slot, inner_) : in(model_, inner_));
  }
  if (!traits_.trainable) return;
  if (refreshes_outer(group)) refresh_.outer = pair_runs(in(model_, inner_), in(model_, both_));
  if (refreshes_inner(group)) refresh_.inner = pair_runs(in(model_, whole_), in(model_, inner_));
}

std::vector<CastCopy> Group::deposits(
    const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) const {
  std::vector<CastCopy> result;
  for (size_t i = 0; i < targets.size(); ++i) {
    result.push_back(
        {targets[i].mutable_data_ptr(), sources[i].const_data_ptr(), targets[i].numel(), false});
  }
  return result;
}

// The full gradients of a pass lie in the slot (where they are sharded), or those of the step in
// the main gradient. Reductions are in place: this rank's part of what is reduced is where the
// result goes. Where the reduce dtype is another, the main gradient is copied to a stage first.
void Group::bind_gradients() {
  const auto in = [&](const PartBuffer& buffer, Part wanted) {
    return runs(*layout_, buffer, wanted);
  };
  const auto group = spec("");
  const bool staged = !group.reduces_in_place;
  scatter_ = {};
  all_reduce_ = {};
  stage_ = {};
  accumulate_ = {};
  targets_.clear();
  if (gradients_are_sharded() && !gradient_slot_.defined()) return;  // not needed now
  stage_kind_ = {traits_.dtypes.reduce, traits_.dtypes.gradient, 1};
  const CastCopyKind back{traits_.dtypes.gradient, traits_.dtypes.reduce, 1};
  const CastCopyKind divided{traits_.dtypes.gradient, traits_.dtypes.reduce, divisor_};
  if (gradients_are_sharded()) {
    const PartBuffer slot{gradient_slot_, whole_};
    scatter_.inner = pair_runs(in(slot, inner_), in(slot, whole_));
    const bool outer = gradient_sharded_outer(group);
    if (outer) scatter_.outer = pair_runs(in(slot, both_), in(slot, inner_));
    auto& accumulation = outer ? accumulate_.outer : accumulate_.inner;
    const auto mine = accumulated();
    accumulation = {deposits(in(gradient_, mine), in(slot, mine)), divided};
  } else {
    PartBuffer reduced = gradient_;
    if (staged) {
      reduced = {in_arena(place_.stage_reduce, whole_, traits_.dtypes.reduce), whole_};
      stage_.inner = deposits(in(reduced, whole_), in(gradient_, whole_));
    }
    const Part mine = accumulated();
    if (optimizer_sharded(group)) {
      scatter_.inner = pair_runs(in(reduced, inner_), in(reduced, whole_));
    } else {
      all_reduce_.inner = in(reduced, whole_);
    }
    accumulate_.inner = {deposits(in(gradient_, mine), in(reduced, mine)), divided};
  }
  if (group.has_outer && !gradient_sharded_outer(group)) {
    const Part mine = optimizer_sharded(group) ? inner_ : whole_;
    const bool scatters = optimizer_sharded_outer(group);
    const Part result = scatters ? both_ : mine;
    PartBuffer reduced = gradient_;
    if (staged) {
      reduced = {in_arena(place_.stage_outer, mine, traits_.dtypes.reduce), mine};
      stage_.outer = deposits(in(reduced, mine), in(gradient_, mine));
      accumulate_.outer = {deposits(in(gradient_, result), in(reduced, result)), back};
    }
    if (scatters) {
      scatter_.outer = pair_runs(in(reduced, both_), in(reduced, mine));
    } else {
      all_reduce_.outer = in(reduced, mine);
    }
  }
  const auto& arrives = gradients_are_sharded() ? gradient_slot_ : gradient_.storage;
  for (size_t member = 0; member < names_.size(); ++member) {
    targets_.push_back(view(arrives, member));
  }
}

/// What the first accumulation after a reduction writes.
Part Group::accumulated() const {
  if (gradients_are_sharded()) return gradient_.part;
  return optimizer_sharded(spec("")) ? inner_ : whole_;
}

std::vector<at::Tensor> Group::accumulated_pieces() const {
  std::vector<at::Tensor> pieces;
  for (size_t member = 0; member < names_.size(); ++member) {
    pieces.push_back(held_run(*layout_, gradient_, accumulated(), static_cast<int64_t>(member)));
  }
  return pieces;
}

Work Group::refresh(AxisKind axis, Communicator::OnStream stream) const {
  return of_axis(links_.gather, axis)->all_gather(of_axis(refresh_, axis), stream);
}

Work Group::gather(AxisKind axis, Communicator::OnStream stream) const {
  return of_axis(links_.gather, axis)->all_gather(of_axis(gather_, axis), stream);
}

Work Group::reduce(AxisKind axis, bool scatter, Communicator::OnStream stream) const {
  auto& link = *of_axis(links_.reduce, axis);
  if (scatter) return link.reduce_scatter(of_axis(scatter_, axis), Reduction::sum(), stream);
  return link.all_reduce(of_axis(all_reduce_, axis), Reduction::sum(), stream);
}

void Group::stage(AxisKind axis) const {
  deposit(of_axis(stage_, axis), stage_kind_, device_);
}

void Group::accumulate(AxisKind axis, bool overwrite) const {
  // Gradients sharded over both axes come from the slot after the outer reduction.
  const bool outer = axis == AxisKind::outer || accumulate_.inner.deposits.empty();
  const auto& [prepared, kind] = outer ? accumulate_.outer : accumulate_.inner;
  const bool nothing_to_do = overwrite && kind.divisor == 1 && kind.target == kind.source &&
                             !prepared.empty() &&
                             prepared.front().target == prepared.front().source;
  if (nothing_to_do) return;
  if (overwrite) return deposit(prepared, kind, device_);
  auto adding = prepared;
  for (auto& one : adding) one.add = true;
  deposit(adding, kind, device_);
}

// On the communicators of reductions; see Note [Following].
void Group::refresh_now() const {
  if (!refresh_.outer.empty()) links_.reduce.outer->all_gather(refresh_.outer).synchronize();
  if (!refresh_.inner.empty()) links_.reduce.inner->all_gather(refresh_.inner).synchronize();
}

at::Tensor Group::gather_now() const {
  PartBuffer full{allocate(layout_->full_size(), traits_.dtypes.model), whole_};
  const bool outer = gathers_outer(spec(""));
  const auto mine = model_.part;
  const auto place = pair_runs(runs(*layout_, full, mine), runs(*layout_, model_, mine));
  for (const auto& [output, input] : place) output.copy_(input);
  if (outer) {
    links_.reduce.outer
        ->all_gather(pair_runs(runs(*layout_, full, inner_), runs(*layout_, full, both_)))
        .synchronize();
  }
  links_.reduce.inner
      ->all_gather(pair_runs(runs(*layout_, full, whole_), runs(*layout_, full, inner_)))
      .synchronize();
  return full.storage;
}

void Group::forget_gradients() {
  std::fill(written_.begin(), written_.end(), false);
}

void Group::deposit_gradient(size_t member, const at::Tensor& gradient) {
  const auto& target = targets_[member];
  auto values = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (!can_deposit(values.scalar_type())) values = values.to(traits_.dtypes.model);
  values = values.contiguous();
  const bool again = written_[member];
  // A second gradient for one parameter has to see the first.
  if (again || (!pending_.empty() && pending_dtype_ != values.scalar_type())) flush();
  pending_dtype_ = values.scalar_type();
  pending_.push_back({target.mutable_data_ptr(), values.const_data_ptr(), target.numel(), again});
  pending_bytes_ += static_cast<int64_t>(values.nbytes());
  pending_owners_.push_back(std::move(values));
  written_[member] = true;
  if (!device_.is_cuda() || pending_bytes_ >= kCopyTogether) flush();
}

void Group::flush() {
  if (pending_.empty()) return;
  deposit(pending_, {targets_.front().scalar_type(), pending_dtype_, 1}, device_);
  drop_pending();
}

void Group::drop_pending() {
  pending_.clear();
  pending_owners_.clear();
  pending_bytes_ = 0;
}

Group::Target Group::take_target(size_t member) {
  const bool again = written_[member];
  if (again) flush();
  written_[member] = true;
  return {targets_[member], !again};
}

void Group::zero_unwritten_gradients() {
  flush();
  for (size_t member = 0; member < names_.size(); ++member) {
    if (!written_[member]) targets_[member].zero_();
  }
}

}  // namespace sherd
