// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace sherd {

/// A handle to a started operation. Cheap to copy; dropping it does not stop the operation.
class SHERD_API Work {
 public:
  /// The interface that backends implement.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual void synchronize() = 0;
    virtual bool done() = 0;
  };

  Work() = default;  ///< an operation that is already done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// CPU: blocks until the operation is done. CUDA: makes the current stream wait for it, and
  /// returns at once. Throws if the operation has failed, on this rank or another; on CUDA only if
  /// the failure is known by then.
  void wait() {
    if (state_) state_->wait();
  }
  /// Blocks the host until the operation is done. Throws as wait() does, and after
  /// WorldOptions::operation_timeout.
  void synchronize() {
    if (state_) state_->synchronize();
  }
  /// Returns whether the operation is done, without waiting. On CUDA it throws as wait() does.
  bool done() { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

/// The output and input of one tensor in a grouped (coalesced) collective.
struct Transfer {
  at::Tensor output;
  at::Tensor input;
};

/// The collectives that sharding needs, among a fixed list of ranks.
///
/// All ranks of a communicator make the same calls in the same order. All operations are
/// asynchronous: a call returns when the operation is started. Until its Work is done, its tensors
/// must not be freed or written, and its output must not be read.
///
/// On CUDA an operation runs on the given stream, after the work that this stream already has. If
/// more work is enqueued on that stream later, the Work may be done only after that. Without a
/// given stream it runs on the communicator's own stream, after the work of the current stream. On
/// CPU the stream is ignored, and the operations of one communicator complete in call order.
///
/// Tensors must be contiguous, of one dtype and on the communicator's device. Output and input must
/// not overlap, with one exception for operation in place: the input of an all-gather may be
/// exactly this rank's part of the output, and the output of a reduce-scatter exactly this rank's
/// part of the input. Wrong arguments throw c10::ValueError before anything is sent.
class SHERD_API Communicator {
 public:
  using OnStream = std::optional<c10::Stream>;

  /// The names that errors and the emulated network use.
  struct Identity {
    std::string name;        ///< axis or purpose of the communicator
    std::string axis;        ///< mesh axis along which it runs
    int64_t world_rank = 0;  ///< this rank's index in the world
  };

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t rank() const { return rank_; }  ///< this rank's index in the communicator
  int64_t size() const { return size_; }  ///< number of ranks
  /// Returns this rank's index in the world; part of every error.
  int64_t world_rank() const { return identity_.world_rank; }
  /// Returns the axis or purpose that it serves; part of every error.
  const std::string& name() const { return identity_.name; }
  /// Returns the mesh axis along which it runs: its name, unless it was split off for a purpose.
  const std::string& axis() const { return identity_.axis; }
  /// Returns "mpi", "nccl" or "emulated".
  virtual std::string backend() const = 0;

  /// Starts an all-gather: each output receives the inputs of all ranks, in rank order. All
  /// transfers are one operation.
  Work all_gather(std::span<const Transfer> transfers, OnStream stream = {});
  Work all_gather(at::Tensor output, at::Tensor input, OnStream stream = {});
  /// Starts a reduce-scatter: each output receives this rank's part of the reduced inputs. All
  /// transfers are one operation.
  Work reduce_scatter(
      std::span<const Transfer> transfers, Reduction reduction, OnStream stream = {});
  Work reduce_scatter(
      at::Tensor output, at::Tensor input, Reduction reduction, OnStream stream = {});
  /// Starts an all-reduce, in place. All tensors are one operation.
  Work all_reduce(std::span<const at::Tensor> tensors, Reduction reduction, OnStream stream = {});
  Work all_reduce(at::Tensor tensor, Reduction reduction, OnStream stream = {});
  /// Starts a broadcast: `tensor` receives the values that it has on rank `root`.
  Work broadcast(at::Tensor tensor, int64_t root, OnStream stream = {});
  /// Starts an all-to-all. `output_splits` and `input_splits` are the numbers of elements that come
  /// from and go to each rank; empty means equal parts. The two may not overlap.
  Work all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits = {},
      std::vector<int64_t> input_splits = {},
      OnStream stream = {});
  /// Starts a send to rank `peer`. Sends to one peer arrive in call order. On CUDA a send may wait
  /// for its receive, and later work on the stream with it: ranks that send to each other at the
  /// same time use all_to_all instead.
  Work send(at::Tensor tensor, int64_t peer, OnStream stream = {});
  /// Starts a receive from rank `peer`; `tensor` must have the dtype and size of what is sent.
  Work receive(at::Tensor tensor, int64_t peer, OnStream stream = {});
  /// Starts a barrier: its Work is done when every rank has called it.
  Work barrier();

  /// Returns a new communicator among some ranks of this one, numbered in the order of `ranks`. Its
  /// operations do not queue behind those of this one. Collective; blocks: all ranks of this
  /// communicator call it at the same point, each with the list of its own group. The lists of one
  /// group must be equal, without repeats, and contain the calling rank. `axis` is `name` if empty.
  /// Each nccl communicator takes device memory (some 250 MiB on an H200). One thread at a time.
  ///
  /// Throws c10::ValueError for a list that is wrong in itself, on that rank and before anything is
  /// sent (the others wait for it), and if a rank of the list has passed another list. This
  /// communicator stays usable.
  std::shared_ptr<Communicator> split(
      std::vector<int64_t> ranks, const std::string& name, const std::string& axis = "");

 protected:
  Communicator(int64_t rank, int64_t size, Identity identity)
      : rank_(rank), size_(size), identity_(std::move(identity)) {}

  /// Returns the prefix of an error: scope, rank, operation and communicator.
  std::string scope(const char* operation) const;

 private:
  virtual Work do_all_gather(std::span<const Transfer> transfers, OnStream stream) = 0;
  virtual Work do_reduce_scatter(std::span<const Transfer> transfers, Reduction, OnStream) = 0;
  virtual Work do_all_reduce(std::span<const at::Tensor> tensors, Reduction, OnStream) = 0;
  virtual Work do_broadcast(at::Tensor tensor, int64_t root, OnStream stream) = 0;
  virtual Work do_all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits,
      std::vector<int64_t> input_splits,
      OnStream stream) = 0;
  virtual Work do_send(at::Tensor tensor, int64_t peer, OnStream stream) = 0;
  virtual Work do_receive(at::Tensor tensor, int64_t peer, OnStream stream) = 0;
  virtual Work do_barrier() = 0;
  virtual std::shared_ptr<Communicator> do_split(std::vector<int64_t> ranks, Identity child) = 0;
  virtual c10::DeviceType device_type() const = 0;

  void check_tensor(const char* operation, const at::Tensor& tensor) const;
  void check_peer(const char* operation, int64_t peer) const;
  void check_reduction(const char* operation, const at::Tensor& tensor, Reduction reduction) const;
  void check_transfer(const char* operation, const at::Tensor& full, const at::Tensor& part) const;

  int64_t rank_;
  int64_t size_;
  Identity identity_;
};

}  // namespace sherd
