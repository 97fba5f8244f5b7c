// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group_storage.h"

#include <algorithm>

#include "kernels/keyed_fill.h"
#include "shard/outside_inference.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {
namespace {

/// Returns the values that the first rank along each axis has: ranks may have been built with
/// different ones. Collective.
at::Tensor values_of_first_rank(const at::Tensor& parameter, const GroupLayout& layout) {
  const auto& traits = layout.traits();
  const auto values = parameter.detach().reshape({-1}).to(layout.device());
  for (const auto& axis : {traits.axes.inner, traits.axes.outer}) {
    if (axis.empty() || values.numel() == 0) continue;
    traits.mesh.communicator(axis).broadcast(values, 0).synchronize();
  }
  return values;
}

std::vector<at::Tensor> with_own_versions(std::vector<at::Tensor> pieces) {
  for (auto& piece : pieces) piece = piece.variable_data();
  return pieces;
}

}  // namespace

GroupStorage::GroupStorage(
    const GroupLayout& layout, const std::vector<UnshardedParameter>& parameters)
    : layout_(layout) {
  const OutsideInference normal;
  const auto& dtypes = layout_.traits().dtypes;
  for (const auto& [dtype, block] : layout_.model_buffers()) {
    model_weight_.push_back(layout_.allocate(layout_.part(Role::parameter), dtype, block));
  }
  main_weight_ = layout_.shares_weight()
                     ? model_weight_.front()
                     : layout_.allocate(layout_.part(Role::optimizer), dtypes.main);
  for (size_t member = 0; member < parameters.size(); ++member) {
    const auto& parameter = parameters[member].parameter;
    uninitialised_.push_back(parameter.is_meta());
    if (!parameter.is_meta()) set_values(member, values_of_first_rank(parameter, layout_));
  }
  main_pieces_ = with_own_versions(layout_.pieces(main_weight_, layout_.main_part()));
}

void GroupStorage::allocate_main_gradient() {
  const auto& traits = layout_.traits();
  if (!traits.trainable || main_gradient_.storage.defined()) return;
  main_gradient_ = layout_.allocate(layout_.part(Role::gradient), traits.dtypes.gradient);
  gradient_pieces_ =
      with_own_versions(layout_.pieces(main_gradient_, layout_.part(Role::optimizer)));
}

void GroupStorage::add_bytes(ModelBytes& bytes) const {
  const auto of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
  };
  for (const auto& buffer : model_weight_) bytes.model_weights += of(buffer.storage);
  if (!layout_.shares_weight()) bytes.main_weights += of(main_weight_.storage);
  bytes.main_gradients += of(main_gradient_.storage);
}

at::Tensor GroupStorage::model_weight_piece(size_t member) const {
  if (layout_.shares_weight() || layout_.is_fp8()) return {};
  return layout_.piece(model_weight_.front(), layout_.part(Role::optimizer), member);
}

std::vector<at::Tensor> GroupStorage::accumulated_pieces() const {
  return layout_.pieces(main_gradient_, layout_.accumulated_part());
}

std::vector<CastCopy> cast_copies(
    const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) {
  std::vector<CastCopy> result;
  for (size_t i = 0; i < targets.size(); ++i) {
    result.push_back(
        {targets[i].mutable_data_ptr(), sources[i].const_data_ptr(), targets[i].numel(), false});
  }
  return result;
}

void GroupStorage::publish() {
  if (layout_.shares_weight() || layout_.is_fp8()) return;
  // Only this rank's part; the rest comes with the next refresh.
  const auto mine = layout_.part(Role::optimizer);
  const auto& dtypes = layout_.traits().dtypes;
  cast_copy(
      cast_copies(layout_.ranges(model_weight_.front(), mine), layout_.ranges(main_weight_, mine)),
      {dtypes.model, dtypes.main, 1}, layout_.device());
}

std::vector<WeightPiece> GroupStorage::pieces_to_encode(int64_t first_scale) {
  const auto mine = layout_.part(Role::optimizer);
  const auto targets = layout_.pieces(model_weight_.front(), mine);
  const auto sources = layout_.pieces(main_weight_, mine);
  std::vector<WeightPiece> pieces;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].numel() == 0) continue;
    pieces.push_back(
        {targets[i].mutable_data_ptr(), sources[i].const_data_ptr(), targets[i].numel(),
         first_scale + static_cast<int64_t>(i)});
  }
  return pieces;
}

void GroupStorage::encode_rows() {
  const auto mine = layout_.part(Role::optimizer);
  const bool blocks = layout_.traits().fp8 == Fp8::blocks;
  for (size_t way = 0; way < model_weight_.size(); way += 2) {
    const auto targets = layout_.pieces(model_weight_[way], mine);
    const auto scales = layout_.pieces(model_weight_[way + 1], mine);
    const auto sources = layout_.pieces(main_weight_, mine);
    std::vector<WeightRows> all;
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].numel() == 0) continue;
      const int64_t columns = layout_.flat().parameters()[i].shape[1];
      all.push_back(
          {targets[i].mutable_data_ptr(), scales[i].mutable_data_ptr(), sources[i].const_data_ptr(),
           targets[i].numel() / columns, columns});
    }
    const auto scaling = blocks ? Scaling::block : way == 0 ? Scaling::mx_row : Scaling::mx_column;
    encode_weight_rows(all, layout_.traits().dtypes.main, scaling, layout_.device());
  }
}

void GroupStorage::divide_gradient(double divisor) const {
  const auto mine = layout_.ranges(main_gradient_, layout_.part(Role::optimizer));
  const auto dtype = layout_.traits().dtypes.gradient;
  cast_copy(cast_copies(mine, mine), {dtype, dtype, divisor}, layout_.device());
}

at::Tensor GroupStorage::gather_main_weight() const {
  const auto& traits = layout_.traits();
  const auto mine = layout_.part(Role::optimizer);
  const auto full = layout_.allocate(GroupLayout::whole(), traits.dtypes.main);
  const auto in_full = [&](Part part) { return layout_.ranges(full, part); };
  for (const auto& [output, input] :
       pair_ranges(in_full(mine), layout_.ranges(main_weight_, mine))) {
    output.copy_(input);
  }
  const auto& spreads = traits.placement.spreads(Role::optimizer);
  if (spreads.outer == Spread::shard) {
    traits.mesh.communicator(traits.axes.outer)
        .all_gather(pair_ranges(in_full(layout_.inner_part()), in_full(layout_.both_part())))
        .synchronize();
  }
  if (spreads.inner == Spread::shard) {
    traits.mesh.communicator(traits.axes.inner)
        .all_gather(pair_ranges(in_full(GroupLayout::whole()), in_full(layout_.inner_part())))
        .synchronize();
  }
  return full.storage;
}

void GroupStorage::set_main_weight(const at::Tensor& full) {
  const PartBuffer all{full, GroupLayout::whole()};
  for (const auto* weight : weights()) {
    const auto from = layout_.ranges(all, weight->part);
    const auto to = layout_.ranges(*weight, weight->part);
    for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  mark_all_initialised();
}

/// The distinct buffers of weights.
std::vector<const PartBuffer*> GroupStorage::weights() const {
  if (layout_.is_fp8()) return {&main_weight_};  // what is encoded follows from it
  if (layout_.shares_weight()) return {&model_weight_.front()};
  return {&model_weight_.front(), &main_weight_};
}

std::optional<std::string> GroupStorage::first_uninitialised() const {
  const auto found = std::find(uninitialised_.begin(), uninitialised_.end(), true);
  if (found == uninitialised_.end()) return std::nullopt;
  return layout_.name(static_cast<size_t>(found - uninitialised_.begin()));
}

void GroupStorage::set_values(size_t member, const at::Tensor& values) {
  for (const auto* weight : weights()) {
    const auto piece = layout_.flat().held_by(weight->part, static_cast<int64_t>(member));
    weight->storage.narrow(0, piece.offset, piece.length)
        .copy_(values.narrow(0, piece.begin, piece.length));
  }
  uninitialised_[member] = false;
  stale_ = layout_.is_fp8();
}

void GroupStorage::fill_by_key(size_t member, uint64_t key, const KeyedValues& values) {
  for (const auto* weight : weights()) {
    const auto& storage = weight->storage;
    const auto piece = layout_.flat().held_by(weight->part, static_cast<int64_t>(member));
    auto* data =
        static_cast<char*>(storage.mutable_data_ptr()) + piece.offset * storage.element_size();
    const auto fill = [&](const CutRun& run) {
      fill_keyed(
          {data + (run.in_part - piece.begin) * storage.element_size(), storage.scalar_type(),
           run.in_whole, run.length, key, values},
          layout_.device());
    };
    if (const auto& cut = layout_.cut(member)) {
      each_run(*cut, piece.begin, piece.length, fill);
    } else {
      fill({piece.begin, piece.begin, piece.length});
    }
  }
  uninitialised_[member] = false;
  stale_ = layout_.is_fp8();
}

void GroupStorage::mark_all_initialised() {
  std::fill(uninitialised_.begin(), uninitialised_.end(), false);
  stale_ = layout_.is_fp8();
}

}  // namespace sherd
