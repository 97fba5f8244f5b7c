// SPDX-License-Identifier: Apache-2.0
#include "sherd/buffer/dbuffer.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <span>
#include <utility>
#include <vector>

#include "comm/overlap.h"
#include "comm/streams.h"

namespace sherd {
namespace {

PerAxis<int64_t> sizes_of(const Mesh& mesh, const DataAxes& axes) {
  return {mesh.size(axes.inner), axes.outer.empty() ? 1 : mesh.size(axes.outer)};
}

PerAxis<int64_t> coordinates_of(const Mesh& mesh, const DataAxes& axes) {
  return {mesh.coordinate(axes.inner), axes.outer.empty() ? 0 : mesh.coordinate(axes.outer)};
}

/// Copies on the given stream, or the current one.
Work local_copy(std::span<const Transfer> transfers, Communicator::OnStream given) {
  if (transfers.empty()) return {};
  const auto device = transfers.front().output.device();
  if (!device.is_cuda()) {
    for (const auto& [output, input] : transfers) output.copy_(input);
    return {};
  }
  const c10::OptionalStreamGuard guard(given);
  for (const auto& [output, input] : transfers) output.copy_(input);
  return Work(stream_work(current_stream(device)));
}

}  // namespace

/// What distinguishes two buffers: one axis, and the sides of it in parts.
struct DBuffer::Change {
  std::string axis;
  Spread from{};
  Spread to{};
  int64_t ranks = 1;       // of the axis
  int64_t coordinate = 0;  // on the axis
  int64_t coarse = 1;      // parts of the buffer whose spread over the axis is not shard
};

DBuffer::DBuffer(
    std::shared_ptr<const Layout> layout,
    Spreads spreads,
    Mesh mesh,
    DataAxes axes,
    at::Tensor storage)
    : layout_(std::move(layout)),
      spreads_(spreads),
      mesh_(std::move(mesh)),
      axes_(std::move(axes)),
      storage_(std::move(storage)),
      part_(part_of(spreads_, sizes_of(mesh_, axes_), coordinates_of(mesh_, axes_))) {
  const int64_t needed = numel_for(*layout_, spreads_, mesh_, axes_);
  TORCH_CHECK_VALUE(
      storage_.defined() && storage_.dim() == 1 && storage_.is_contiguous(),
      "[buffer] the storage must be a contiguous tensor of one dim");
  TORCH_CHECK_VALUE(
      storage_.numel() == needed, "[buffer] the storage has ", storage_.numel(), " elements; part ",
      part_.index, " of ", part_.count, " needs ", needed);
  TORCH_CHECK_VALUE(
      reinterpret_cast<uintptr_t>(begin_of(storage_)) % 16 == 0,
      "[buffer] the storage does not start on a multiple of 16 bytes");
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(storage_.element_size()) * layout_->alignment() % 16 == 0,
      "[buffer] the layout aligns parameters on ", layout_->alignment(), " elements, which in ",
      storage_.scalar_type(), " is less than 16 bytes: build it with element_size ",
      storage_.element_size());
}

int64_t DBuffer::numel_for(
    const Layout& layout, Spreads spreads, const Mesh& mesh, const DataAxes& axes) {
  TORCH_CHECK_VALUE(
      !axes.outer.empty() || spreads.outer == Spread::replicate, "[buffer] the outer axis says ",
      to_text(spreads.outer), ", but none is named: name it, or use replicate");
  return layout.part_size(part_of(spreads, sizes_of(mesh, axes), coordinates_of(mesh, axes)).count);
}

at::Tensor DBuffer::view(int64_t parameter) const {
  TORCH_CHECK(
      part_.count == 1, "[buffer] '", layout_->parameters()[static_cast<size_t>(parameter)].name,
      "' has no full view: this rank holds part ", part_.index, " of ", part_.count);
  return storage_.narrow(0, layout_->offset(parameter), layout_->numel(parameter))
      .view(layout_->parameters()[static_cast<size_t>(parameter)].shape);
}

at::Tensor DBuffer::held(int64_t parameter) const {
  const auto piece = layout_->held_by(part_, parameter);
  return storage_.narrow(0, piece.offset, piece.length);
}

bool DBuffer::shares_axes_with(const DBuffer& other) const {
  return axes_.inner == other.axes_.inner && axes_.outer == other.axes_.outer &&
         sizes_of(mesh_, axes_) == sizes_of(other.mesh_, other.axes_) &&
         coordinates_of(mesh_, axes_) == coordinates_of(other.mesh_, other.axes_);
}

DBuffer::Change DBuffer::change_to(const DBuffer& target) const {
  TORCH_CHECK_VALUE(layout_ == target.layout_, "[buffer] the two buffers have different layouts");
  TORCH_CHECK_VALUE(
      shares_axes_with(target), "[buffer] the two buffers are spread over different axes");
  TORCH_CHECK_VALUE(
      storage_.scalar_type() == target.storage_.scalar_type(), "[buffer] the dtypes differ (",
      storage_.scalar_type(), ", ", target.storage_.scalar_type(), "): cast first");
  const auto& to = target.spreads_;
  const bool inner = spreads_.inner != to.inner;
  const bool outer = spreads_.outer != to.outer;
  TORCH_CHECK_VALUE(
      inner != outer, "[buffer] from (", to_text(spreads_), ") to (", to_text(to), ") ",
      inner ? "both axes change: redistribute one at a time" : "nothing changes");
  const auto sizes = sizes_of(mesh_, axes_);
  const auto coordinates = coordinates_of(mesh_, axes_);
  Change change;
  change.axis = outer ? axes_.outer : axes_.inner;
  change.from = outer ? spreads_.outer : spreads_.inner;
  change.to = outer ? to.outer : to.inner;
  change.ranks = outer ? sizes.outer : sizes.inner;
  change.coordinate = outer ? coordinates.outer : coordinates.inner;
  change.coarse = outer && spreads_.inner == Spread::shard ? sizes.inner : 1;
  return change;
}

Work DBuffer::redistribute(DBuffer& target, const RedistributeOptions& options) const {
  auto work = move(change_to(target), target, options);
  ++target.version_;
  return work;
}

Work DBuffer::move(
    const Change& change, DBuffer& target, const RedistributeOptions& options) const {
  using enum Spread;
  auto& communicator =
      options.communicator ? *options.communicator : mesh_.communicator(change.axis);
  TORCH_CHECK_VALUE(
      communicator.size() == change.ranks && communicator.rank() == change.coordinate,
      "[buffer] the communicator '", communicator.name(), "' does not run along the axis '",
      change.axis, "'");
  const auto& source = storage_;
  const auto& sink = target.storage_;
  const auto one = std::pair(change.from, change.to);
  const bool gathers = one == std::pair(shard, replicate);
  const bool reduces = one == std::pair(partial, shard);
  const bool slices = one == std::pair(replicate, shard);

  if (!gathers && !reduces && !slices) {
    const bool joins = one == std::pair(partial, replicate);
    TORCH_CHECK_VALUE(
        joins || change.ranks == 1, "[buffer] ", to_text(change.from), " can't become ",
        to_text(change.to), " over the ", change.ranks, " ranks of '", change.axis, "'");
    const bool same = source.const_data_ptr() == sink.const_data_ptr();
    TORCH_CHECK_VALUE(
        same || !overlap(source, sink),
        "[buffer] source and target overlap without being the same");
    auto copied = same ? Work() : local_copy({{Transfer{sink, source}}}, options.stream);
    return joins ? communicator.all_reduce(sink, options.reduction, options.stream) : copied;
  }

  // The larger side holds all ranks' parts of each segment, the smaller this rank's.
  const auto& large = gathers ? sink : source;
  const auto& small = gathers ? source : sink;
  TORCH_CHECK_VALUE(
      layout_->segments().size() == 1 || change.ranks == 1 || !overlap(large, small),
      "[buffer] source and target overlap: with ", layout_->segments().size(),
      " segments no part of the one is in place in the other");
  std::vector<Transfer> transfers;
  for (const auto& segment : layout_->segments()) {
    const int64_t length = segment.shard_size * layout_->shards() / change.coarse;
    const int64_t share = length / change.ranks;
    auto whole = large.narrow(0, segment.offset / change.coarse, length);
    const auto part = small.narrow(0, segment.offset / (change.coarse * change.ranks), share);
    if (slices) {
      const auto own = whole.narrow(0, change.coordinate * share, share);
      const bool in_place = own.const_data_ptr() == part.const_data_ptr();
      TORCH_CHECK_VALUE(
          in_place || !overlap(whole, part),
          "[buffer] source and target overlap, but not at this rank's part");
      if (in_place) continue;
      whole = own;
    }
    transfers.push_back(gathers ? Transfer{whole, part} : Transfer{part, whole});
  }
  if (gathers) return communicator.all_gather(transfers, options.stream);
  if (reduces) return communicator.reduce_scatter(transfers, options.reduction, options.stream);
  return local_copy(transfers, options.stream);
}

void DBuffer::cast(DBuffer& target) const {
  TORCH_CHECK_VALUE(
      layout_ == target.layout_ && spreads_ == target.spreads_ && shares_axes_with(target),
      "[buffer] a cast keeps layout, axes and spreads: (", to_text(spreads_), ") is not (",
      to_text(target.spreads_), ")");
  TORCH_CHECK_VALUE(
      !overlap(storage_, target.storage_), "[buffer] source and target of a cast overlap");
  target.storage_.copy_(storage_);
  ++target.version_;
}

}  // namespace sherd
