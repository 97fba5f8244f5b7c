// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/encoded_weights.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "plan/group_shape.h"
#include "shard/outside_inference.h"
#include "shard/runtime/model_units.h"

namespace sherd {

void EncodedWeights::prepare(const ModelUnits& units) {
  const OutsideInference normal;
  int64_t count = 0;
  std::vector<Group*> exchanging;
  for (const auto* unit : units) {
    for (const auto& group : unit->groups()) {
      if (!group->layout().is_fp8()) continue;
      groups_.push_back(group.get());
      if (group->layout().spec().encoding.exchanged == 0) continue;
      exchanging.push_back(group.get());
      count += group->layout().spec().encoding.exchanged;
    }
  }
  if (exchanging.empty()) return;
  const auto options = at::TensorOptions().device(exchanging.front()->layout().device());
  amaxes_ = at::zeros({count}, options.dtype(at::kInt));
  scales_ = at::zeros({count}, options.dtype(at::kFloat));
  int64_t first = 0;
  for (auto* group : exchanging) {
    const auto& spec = group->layout().spec();
    const int64_t mine = spec.encoding.exchanged;
    group->fp8().set_scales(scales_.narrow(0, first, mine));
    const auto dtype = group->traits().dtypes.main;
    auto known = std::find_if(
        pieces_.begin(), pieces_.end(), [&](const Pieces& one) { return one.dtype == dtype; });
    if (known == pieces_.end()) known = pieces_.insert(known, {dtype, {}});
    for (const auto& piece : group->storage().pieces_to_encode(first)) {
      known->pieces.push_back(piece);
    }
    const auto& communicators = group->transfers().communicators();
    if (optimizer_sharded(spec)) {
      add_exchange(communicators.reduce.inner, amaxes_.narrow(0, first, mine));
    }
    first += mine;
  }
  first = 0;
  for (auto* group : exchanging) {
    const auto& spec = group->layout().spec();
    if (optimizer_sharded_outer(spec)) {
      add_exchange(
          group->transfers().communicators().reduce.outer,
          amaxes_.narrow(0, first, spec.encoding.exchanged));
    }
    first += spec.encoding.exchanged;
  }
}

/// Neighbours become one tensor: usually all are.
void EncodedWeights::add_exchange(Communicator* communicator, const at::Tensor& amaxes) {
  auto known = std::find_if(exchanges_.begin(), exchanges_.end(), [&](const Exchange& one) {
    return one.communicator == communicator;
  });
  if (known == exchanges_.end()) known = exchanges_.insert(known, {communicator, {}});
  auto& all = known->amaxes;
  if (!all.empty() && all.back().storage_offset() + all.back().numel() == amaxes.storage_offset()) {
    all.back() =
        amaxes_.narrow(0, all.back().storage_offset(), all.back().numel() + amaxes.numel());
  } else {
    all.push_back(amaxes);
  }
}

void EncodedWeights::encode() {
  if (groups_.empty()) return;
  const OutsideInference normal;
  for (auto* group : groups_) {
    if (group->layout().spec().encoding.exchanged == 0) group->storage().encode_rows();
  }
  if (amaxes_.defined() && !amaxes_.is_meta()) encode_with_exchanged_scales();
  // Not before: an exchange that fails is repeated.
  for (auto* group : groups_) group->storage().note_encoded();
}

void EncodedWeights::encode_with_exchanged_scales() {
  amaxes_.zero_();
  for (const auto& [dtype, pieces] : pieces_) measure_weights(pieces, dtype, amaxes_);
  for (const auto& [communicator, amaxes] : exchanges_) {
    communicator->all_reduce(amaxes, Reduction::max()).wait();
  }
  for (const auto& [dtype, pieces] : pieces_) encode_weights(pieces, dtype, amaxes_, scales_);
}

bool EncodedWeights::encode_stale() {
  const bool stale = std::any_of(
      groups_.begin(), groups_.end(), [](Group* group) { return group->storage().is_stale(); });
  if (stale) encode();
  return stale;
}

}  // namespace sherd
