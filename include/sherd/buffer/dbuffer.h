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

/// The names of the data-parallel axes of a mesh.
struct DataAxes {
  std::string inner = "dp";  ///< axis that is sharded over first
  std::string outer;         ///< second axis, of HSDP and HFSDP; empty: none
};

/// Options of DBuffer::redistribute.
struct RedistributeOptions {
  /// How the ranks' contributions are combined, if the source is partial.
  Reduction reduction = Reduction::sum();
  Communicator::OnStream stream{};       ///< CUDA: stream to run on; see Communicator
  Communicator* communicator = nullptr;  ///< default: the mesh's own for the changed axis
};

/// This rank's part of a flat buffer of parameters that is distributed over the data-parallel axes
/// (a distributed buffer), in storage that the caller provides. A handle: copies share the storage,
/// but each has its own version().
class SHERD_API DBuffer {
 public:
  /// Makes a buffer in `storage`: contiguous, of one dim, aligned to 16 bytes, with exactly
  /// numel_for() elements of any dtype whose size is at least the layout's element_size. Throws,
  /// and says what does not fit, otherwise. Not collective.
  DBuffer(
      std::shared_ptr<const Layout> layout,
      Spreads spreads,
      Mesh mesh,
      DataAxes axes,
      at::Tensor storage);

  /// Returns the number of elements of this rank's part of such a buffer. Throws if spreads and
  /// axes don't fit.
  static int64_t numel_for(
      const Layout& layout, Spreads spreads, const Mesh& mesh, const DataAxes& axes);

  const Layout& layout() const { return *layout_; }
  const Spreads& spreads() const { return spreads_; }
  /// Returns the part that this rank holds.
  Part part() const { return part_; }
  const at::Tensor& storage() const { return storage_; }

  /// Returns a view of a parameter in its full shape. Throws unless this rank holds the whole
  /// buffer.
  at::Tensor view(int64_t parameter) const;
  /// Returns a view of the elements of a parameter that this rank holds, flat; empty if none.
  at::Tensor held(int64_t parameter) const;

  /// Returns the number of writes through this handle: as target of redistribute() and cast(), and
  /// those reported by mark_written().
  int64_t version() const { return version_; }
  /// Reports a write to the storage by other means.
  void mark_written() { ++version_; }

  /// Writes this buffer's values into `target`, which has the same layout, axes and dtype but
  /// another spread over exactly one axis:
  ///   shard → replicate    all-gather
  ///   partial → shard      reduce-scatter
  ///   partial → replicate  all-reduce
  ///   replicate → shard    copy of this rank's slice; nothing is sent
  ///   anything else        copy; only on an axis of one rank, throws on others
  /// The storages must be disjoint, or overlap so that the operation is in place: the target of an
  /// all-reduce may be the source, and the smaller side of the others may be exactly this rank's
  /// part of the larger side (if the layout has one segment). Other overlaps throw. Collective
  /// along the changed axis, and asynchronous as Communicator describes: do not touch the storages
  /// until the Work is done.
  Work redistribute(DBuffer& target, const RedistributeOptions& options = {}) const;

  /// Copies the values into `target`, which has the same layout and spreads but may have another
  /// dtype, on the current stream. The storages must not overlap. Not collective.
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
