// SPDX-License-Identifier: Apache-2.0
#include "sherd/comm/mesh.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace sherd {

struct Mesh::Line {
  int64_t coordinate = 0;
  std::vector<int64_t> ranks;  // world ranks along the axis through this rank
  std::shared_ptr<Communicator> communicator;
  mutable std::map<std::string, std::shared_ptr<Communicator>> for_purpose;
};

namespace {

std::string to_text(const std::vector<Axis>& axes) {
  std::string result;
  for (const auto& axis : axes)
    result += c10::str(result.empty() ? "" : " × ", axis.name, "=", axis.size);
  return result;
}

void check_axes(const std::vector<Axis>& axes) {
  for (size_t i = 0; i < axes.size(); ++i) {
    TORCH_CHECK_VALUE(!axes[i].name.empty(), "[comm.mesh] an axis has no name: ", to_text(axes));
    TORCH_CHECK_VALUE(
        axes[i].size >= 1, "[comm.mesh] axis '", axes[i].name, "' has size ", axes[i].size,
        "; it must be at least 1");
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(
          axes[i].name != axes[j].name, "[comm.mesh] the name '", axes[i].name,
          "' appears twice in ", to_text(axes));
    }
  }
}

/// Throws on all ranks unless they make the same mesh: a rank would wait for others to join in
/// opening an axis that these don't have.
void agree_on_axes(const World& world, const std::vector<Axis>& axes) {
  auto& communicator = world.communicator();
  if (world.size() == 1 || world.launcher() == Launcher::emulated) return;
  // As in new_communicator().
  const c10::impl::ForceDispatchKeyGuard no_scopes(
      c10::default_included_set, c10::default_excluded_set);
  const auto text = to_text(axes);
  constexpr size_t kMostBytes = 160;
  const auto mine = at::zeros({static_cast<int64_t>(kMostBytes)}, at::kByte);
  std::copy_n(text.begin(), std::min(text.size(), kMostBytes), mine.mutable_data_ptr<uint8_t>());
  const auto device = world.device();
  auto all = at::empty({world.size(), mine.numel()}, mine.options().device(device));
  communicator.all_gather(all.view(-1), mine.to(device)).synchronize();
  const auto said = all.cpu();
  const auto text_of = [&](int64_t rank) {
    const auto* bytes = reinterpret_cast<const char*>(said[rank].const_data_ptr<uint8_t>());
    return std::string(bytes, std::find(bytes, bytes + kMostBytes, '\0'));
  };
  const auto first = text_of(0);
  for (int64_t rank = 1; rank < world.size(); ++rank) {
    const auto other = text_of(rank);
    TORCH_CHECK_VALUE(
        other == first, "[comm.mesh] rank 0 makes a mesh of ", first, ", rank ", rank, " one of ",
        other,
        ": all ranks must make the same meshes in the same order (the same sizes of "
        "data-parallel groups, cp, tp and ep)");
  }
}

}  // namespace

Mesh::Mesh(World world, std::vector<Axis> axes) : world_(std::move(world)), axes_(std::move(axes)) {
  check_axes(axes_);
  TORCH_CHECK_VALUE(
      !axes_.empty() && size() == world_.size(), "[comm.mesh] the axes ", to_text(axes_), " make ",
      size(), " ranks, but the world has ", world_.size(), ": their sizes must multiply to it");
  agree_on_axes(world_, axes_);
  int64_t stride = world_.size();
  for (const auto& axis : axes_) {
    stride /= axis.size;
    auto line = std::make_shared<Line>();
    line->coordinate = world_.rank() / stride % axis.size;
    const int64_t first = world_.rank() - line->coordinate * stride;
    for (int64_t i = 0; i < axis.size; ++i) line->ranks.push_back(first + i * stride);
    line->communicator = world_.communicator().split(line->ranks, axis.name);
    lines_.push_back(std::move(line));
  }
}

Mesh::Mesh(World world, std::vector<Axis> axes, std::vector<std::shared_ptr<const Line>> lines)
    : world_(std::move(world)), axes_(std::move(axes)), lines_(std::move(lines)) {}

bool Mesh::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const Axis& own) { return own.name == axis; });
}

const Mesh::Line& Mesh::line(const std::string& axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return *lines_[i];
  }
  TORCH_CHECK_VALUE(false, "[comm.mesh] there is no axis '", axis, "' in ", to_text(axes_));
}

int64_t Mesh::size(const std::string& axis) const {
  return std::ssize(line(axis).ranks);
}
int64_t Mesh::coordinate(const std::string& axis) const {
  return line(axis).coordinate;
}

const std::vector<int64_t>& Mesh::ranks(const std::string& axis) const {
  return line(axis).ranks;
}

int64_t Mesh::size() const {
  return std::accumulate(
      axes_.begin(), axes_.end(), int64_t{1},
      [](int64_t product, const Axis& axis) { return product * axis.size; });
}

Communicator& Mesh::communicator(const std::string& axis) const {
  return *line(axis).communicator;
}

Communicator& Mesh::communicator(const std::string& axis, const std::string& purpose) const {
  auto& known = line(axis).for_purpose[purpose];
  if (!known) known = new_communicator(axis, purpose);
  return *known;
}

std::shared_ptr<Communicator> Mesh::new_communicator(
    const std::string& axis, const std::string& purpose) const {
  // What ranks tell each other has values, also while a MetaDevice lives.
  const c10::impl::ForceDispatchKeyGuard no_scopes(
      c10::default_included_set, c10::default_excluded_set);
  return world_.communicator().split(line(axis).ranks, purpose, axis);
}

Mesh Mesh::sub(const std::vector<std::string>& axes) const {
  std::vector<Axis> kept;
  std::vector<std::shared_ptr<const Line>> lines;
  for (const auto& name : axes) {
    kept.push_back({name, size(name)});
    const auto place = std::find(axes_.begin(), axes_.end(), kept.back()) - axes_.begin();
    lines.push_back(lines_[static_cast<size_t>(place)]);
  }
  check_axes(kept);
  return {world_, std::move(kept), std::move(lines)};
}

Mesh Mesh::flatten(const std::vector<std::string>& axes, const std::string& name) const {
  TORCH_CHECK_VALUE(!axes.empty(), "[comm.mesh] no axes to flatten into '", name, "'");
  auto flat = std::make_shared<Line>();
  flat->ranks = {world_.rank()};
  int64_t total = 1;
  for (const auto& axis : axes) {
    const auto& each = line(axis);
    std::vector<int64_t> ranks;
    for (const int64_t rank : flat->ranks) {
      for (const int64_t other : each.ranks) ranks.push_back(rank + other - world_.rank());
    }
    flat->ranks = std::move(ranks);
    flat->coordinate = flat->coordinate * size(axis) + each.coordinate;
    total *= size(axis);
  }
  std::vector<Axis> kept;
  std::vector<std::shared_ptr<const Line>> lines;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axes.front()) {  // the new axis takes the place of the first of them
      kept.push_back({name, total});
      lines.push_back(flat);
    } else if (std::find(axes.begin(), axes.end(), axes_[i].name) == axes.end()) {
      kept.push_back(axes_[i]);
      lines.push_back(lines_[i]);
    }
  }
  check_axes(kept);
  // As in new_communicator().
  const c10::impl::ForceDispatchKeyGuard no_scopes(
      c10::default_included_set, c10::default_excluded_set);
  flat->communicator = world_.communicator().split(flat->ranks, name);
  return {world_, std::move(kept), std::move(lines)};
}

}  // namespace sherd
