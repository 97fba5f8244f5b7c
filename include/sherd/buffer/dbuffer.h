// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "sherd/comm/communicator.h"
#include "sherd/comm/mesh.h"
#include "sherd/export.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/placement.h"

namespace sherd {

/// The data-parallel axes of a mesh that a buffer is spread over.
struct DataAxes {
  std::string inner = "dp";
  std::string outer;  ///< empty: there is none
};

struct RedistributeOptions {
  /// How ranks' contributions are joined, where the source is partial.
  Reduction reduction = Reduction::sum();
  Communicator::OnStream stream{};
  /// Instead of the mesh's own for the changed axis.
  Communicator* communicator = nullptr;
};

/// A flat buffer of a group's parameters, spread over the data-parallel axes: this rank's part of
/// it, in storage that it is given. A handle: copies share the storage and count their writes
/// apart.
class SHERD_API DBuffer {
 public:
  /// `storage` is one-dimensional, contiguous, starts on 16 bytes and has exactly numel_for()
  /// elements, of any dtype. Throws naming what does not fit.
  DBuffer(
      std::shared_ptr<const Layout> layout,
      Spreads spreads,
      Mesh mesh,
      DataAxes axes,
      at::Tensor storage);

  /// The elements that this rank's part of such a buffer has.
  static int64_t numel_for(
      const Layout& layout, Spreads spreads, const Mesh& mesh, const DataAxes& axes);

  const Layout& layout() const { return *layout_; }
  const Spreads& spreads() const { return spreads_; }
  /// Which part this rank holds.
  Part part() const { return part_; }
  const at::Tensor& storage() const { return storage_; }

  /// A parameter in its full shape, where this rank holds all of it ({0, 1} is its part): a view.
  at::Tensor view(int64_t parameter) const;
  /// The elements of a parameter that this rank holds, flat; empty if it holds none: a view.
  at::Tensor held(int64_t parameter) const;

  /// Grows with each write: those of redistribute and cast, and those that mark_written() reports.
  int64_t version() const { return version_; }
  void mark_written() { ++version_; }

  /// Writes this buffer's values into `target`, which has the same layout, mesh and dtype and
  /// differs in the spread over exactly one axis:
  ///   shard → replicate    all-gather
  ///   partial → shard      reduce-scatter
  ///   partial → replicate  all-reduce
  ///   replicate → shard    this rank's slice; nothing travels
  ///   anything else        a new label; on an axis of one rank only
  /// The storages must be disjoint, or overlap so that the operation is in place: `target` of an
  /// all-reduce may be the source's storage, and the smaller side of the others may be exactly this
  /// rank's part of the larger (if the layout has one segment). Other overlaps are refused.
  /// Asynchronous as Communicator says: both storages stay untouched until the Work is done.
  Work redistribute(DBuffer& target, const RedistributeOptions& options = {}) const;

  /// Writes the values into `target`, of the same spreads and another dtype, on the current stream.
  void cast(DBuffer& target) const;

 private:
  struct Change;
  Change change_to(const DBuffer& target) const;
  bool shares_axes_with(const DBuffer& other) const;
  Work move(const Change& change, DBuffer& target, const RedistributeOptions& options) const;

  std::shared_ptr<const Layout> layout_;
  Spreads spreads_;
  Mesh mesh_;
  DataAxes axes_;
  at::Tensor storage_;
  Part part_;
  int64_t version_ = 0;
};

}  // namespace sherd
