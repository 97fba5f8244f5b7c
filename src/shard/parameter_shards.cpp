// SPDX-License-Identifier: Apache-2.0
#include "shard/parameter_shards.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <iterator>

#include "shard/outside_inference.h"
#include "shard/unit/unit.h"

namespace sherd {
namespace {

void set_replica(ParameterShard& shard, const GroupLayout& layout) {
  const auto sizes = layout.traits().axis_sizes();
  const auto coordinates = layout.traits().coordinates();
  const auto repeat = [&](Spread spread, int64_t size, int64_t coordinate) {
    if (spread == Spread::shard) return;
    shard.replica = shard.replica * size + coordinate;
    shard.replicas *= size;
  };
  repeat(layout.main_spreads().outer, std::max<int64_t>(1, sizes.outer), coordinates.outer);
  repeat(layout.main_spreads().inner, std::max<int64_t>(1, sizes.inner), coordinates.inner);
  const auto& world = layout.traits().mesh.world();
  // No other rank counts an emulated one's copies. A dry run stands for a rank of a real world.
  const bool alone = world.launcher() == Launcher::emulated && !world.device().is_meta();
  shard.counted = shard.replica == 0 || alone;
}

ParameterShard shard_of(const Group& group, size_t member) {
  const auto& layout = group.layout();
  const auto& traits = group.traits();
  const auto& storage = group.storage();
  const auto piece = layout.flat().held_by(layout.main_part(), static_cast<int64_t>(member));
  ParameterShard shard{
      .name = group.name(member),
      .shape = layout.flat().parameters()[member].shape,
      .cut = layout.cut(member),
      .trainable = traits.trainable,
      .main = storage.main_pieces()[member],
      .begin = piece.begin,
      .group_size = layout.flat().part_size(layout.main_part().count),
      .offset = piece.length == 0 ? 0 : piece.offset,
      .mesh = traits.mesh,
      .axes = traits.axes};
  if (traits.trainable) {
    shard.gradient = storage.gradient_pieces()[member];
    shard.model_weight = storage.model_weight_piece(member);
  }
  set_replica(shard, layout);
  return shard;
}

}  // namespace

std::vector<ParameterShard> parameter_shards(const std::vector<Unit*>& units) {
  std::vector<ParameterShard> result;
  int64_t groups = 0;
  for (const auto* unit : units) {
    for (const auto& group : unit->groups()) {
      for (size_t member = 0; member < group->size(); ++member) {
        auto shard = shard_of(*group, member);
        if (unit != units.back()) shard.name = unit->name() + "." + shard.name;
        shard.group = groups;
        result.push_back(std::move(shard));
      }
      ++groups;
    }
  }
  return result;
}

std::vector<ParameterShard> trainable_only(const std::vector<ParameterShard>& shards) {
  std::vector<ParameterShard> result;
  std::copy_if(
      shards.begin(), shards.end(), std::back_inserter(result),
      [](const ParameterShard& shard) { return shard.trainable; });
  return result;
}

std::string names_of_frozen(
    const std::vector<ParameterShard>& shards, const std::vector<bool>& frozen) {
  std::string text;
  size_t index = 0;
  for (const auto& shard : shards) {
    if (!shard.trainable || !frozen[index++]) continue;
    text += (text.empty() ? "" : ", ") + shard.name;
  }
  return text.empty() ? "none" : text;
}

at::Tensor join_parts(const ParameterShard& shard, const World& world) {
  const OutsideInference normal;
  const auto whole = at::zeros(shard.cut->shape, shard.main.options());
  if (shard.counted) {
    const auto flat = whole.view({-1});
    each_run(*shard.cut, shard.begin, shard.main.numel(), [&](const CutRun& run) {
      flat.narrow(0, run.in_whole, run.length)
          .copy_(shard.main.narrow(0, run.in_part - shard.begin, run.length));
    });
  }
  if (whole.numel() == 0) return whole;
  // One rank has written each byte, so their sum is exact, whatever they mean.
  const auto bytes = whole.view({-1}).view(at::kByte);
  world.communicator().all_reduce(bytes, Reduction::sum()).synchronize();
  return whole;
}

ShardBuffers allocate_like_main(const std::vector<ParameterShard>& shards, c10::ScalarType dtype) {
  const OutsideInference normal;
  ShardBuffers result;
  int64_t group = -1;
  for (const auto& shard : shards) {
    if (shard.group != group) {
      const auto options = shard.main.options().dtype(dtype);
      result.storages.push_back(at::zeros({shard.group_size}, options));
      group = shard.group;
    }
    result.pieces.push_back(result.storages.back().narrow(0, shard.offset, shard.main.numel()));
  }
  return result;
}

}  // namespace sherd
