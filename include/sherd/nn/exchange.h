// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sherd/comm/mesh.h"
#include "sherd/export.h"

namespace sherd {

/// The rows of an all-to-all on both sides.
struct ExchangedCounts {
  at::Tensor received;                 ///< the counts that arrive, int64, like those that were sent
  std::vector<int64_t> sent_rows;      ///< by rank: rows that go to it
  std::vector<int64_t> received_rows;  ///< by rank: rows that come from it
};

// Note [Gradients of exchanges]
// Every rank has tokens of its own, and the loss is the sum of the ranks' losses (divided by their
// number once, after the reduction of gradients). A value that an exchange brings to several ranks
// is part of several losses, so its gradient is the sum over these ranks: the backward of an
// exchange is its transpose, and the backward of gather_rows is a sum that is scattered.

/// The exchanges of activations between the ranks along one mesh axis, for one purpose, in the
/// forwards of modules: tensor, sequence, context and expert parallelism consist of them. A handle
/// that is cheap to copy and keeps the world open.
///
/// All ranks along the axis make the same calls in the same order, on one thread at a time, and use
/// the results in their losses (times zero, if need be); the backwards then come in the same order,
/// too. Exchanges may be called within recompute().
///
/// Operations run on the current stream: on CUDA they return at once, on CPU when they are done. On
/// the meta device they allocate their results and send nothing. Along an axis of one rank nothing
/// is sent, and the result is the input itself, so don't write it in place. In an emulated world
/// the other ranks send what the emulation says. Results are dense. Second derivatives throw, and
/// so do shapes that don't fit.
///
/// Exchanges in a unit's forward and backward are part of the program: the first training pass
/// records them (also on the meta device), and Program::exchanges() has them from then on. Ranks
/// along the axis compare what they are about to exchange before they do it for the first time, and
/// whenever a rank exchanges something else than in the pass before; the host waits for that. If
/// they differ, all of them throw an error that names two ranks, their units and exchanges. A rank
/// that never comes is an error after WorldOptions::operation_timeout. Exchanges outside of units
/// are neither recorded nor compared.
///
/// Floating point of 16 bits or more has gradients; other dtypes are moved without.
class SHERD_API Exchange {
 public:
  /// Opens a communicator along the axis unless this mesh has one for the purpose already, or the
  /// axis has one rank. Collective over the world. `purpose` is part of errors.
  Exchange(const Mesh& mesh, const std::string& axis, const std::string& purpose);

  const std::string& axis() const;     ///< mesh axis
  const std::string& purpose() const;  ///< what it is for
  int64_t rank() const;                ///< this rank's index along the axis
  int64_t size() const;                ///< number of ranks along the axis

  /// Returns the ranks' tensors joined along `dim`, in the order of the ranks (an all-gather). All
  /// have one shape. Backward: scatter_sum.
  at::Tensor gather_rows(const at::Tensor& x, int64_t dim) const;
  /// Returns the same of several tensors, in one operation and without gradients: of rows in fp8
  /// and their scales, in a function that has a backward of its own.
  std::vector<at::Tensor> gather_rows_together(at::TensorList tensors, int64_t dim) const;
  /// Returns this rank's part, along `dim`, of the sum over the ranks (a reduce-scatter). Backward:
  /// gather_rows. Throws if the ranks don't divide that dim.
  at::Tensor scatter_sum(const at::Tensor& x, int64_t dim) const;
  /// Returns the rows, entries of dim 0, that come from the ranks, in their order: `sent[r]` rows
  /// go to rank r, `received[r]` come from it. The other dims are the same on all ranks. Backward:
  /// the same with both lists swapped. Throws if a list has not one count for each rank.
  /// `mean_rows`, if the counts depend on routing: the number of rows to expect, for the program.
  at::Tensor all_to_all(
      const at::Tensor& rows,
      std::span<const int64_t> sent,
      std::span<const int64_t> received,
      std::optional<int64_t> mean_rows = std::nullopt) const;
  /// Cuts x along `split_dim` into one part for each rank, sends each its part, and returns those
  /// that arrive joined along `join_dim`. Backward: the same with both dims swapped. Throws if the
  /// ranks don't divide split_dim.
  at::Tensor all_to_all_dims(const at::Tensor& x, int64_t split_dim, int64_t join_dim) const;

  /// Returns the sum over the ranks, element by element. No gradient flows.
  at::Tensor sum_numbers(const at::Tensor& x) const;
  /// Exchanges counts of rows, integers [size(), ..]: `sent[r]` are those of the rows that go to
  /// rank r. Waits until they are on the host, which all_to_all() needs. On the meta device, where
  /// there are no values, `rows` are taken to be divided evenly among the ranks, and those that
  /// arrive are as many; without `rows` it throws there.
  ExchangedCounts exchange_counts(
      const at::Tensor& sent, std::optional<int64_t> rows = std::nullopt) const;

 private:
  struct Line;
  std::shared_ptr<const Line> line_;
};

}  // namespace sherd
