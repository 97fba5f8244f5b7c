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

/// A handle to a started operation. Cheap to copy; dropping it does not stop the operation. Its
/// functions may be called on any thread, and by several threads at once.
class SHERD_API Work {
 public:
  /// The interface that backends implement. Each function has the contract of Work's function of
  /// the same name.
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual void synchronize() = 0;
    virtual bool done() = 0;
  };

  Work() = default;  ///< an operation that is already done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// On CPU, blocks until the operation is done or its time is up (WorldOptions::operation_timeout,
  /// once for each operation ahead of it). On CUDA,
  /// makes the current stream wait for it and returns at once. Throws if the operation has failed,
  /// on this rank or another, or has taken too long; on CUDA only if that is known by then.
  void wait() {
    if (state_) state_->wait();
  }
  /// Blocks the host until the operation is done. Throws as wait() does, and after
  /// WorldOptions::operation_timeout.
  void synchronize() {
    if (state_) state_->synchronize();
  }
  /// Returns whether the operation is done, without waiting. On CPU that is also true after a
  /// failure, which wait() throws; on CUDA it throws as wait() does.
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
/// All ranks of a communicator make the same calls in the same order, on one thread at a time;
/// different communicators may be used by different threads at once. All operations are
/// asynchronous: a call returns when the operation is started. On CPU its tensors must not be freed
/// or written, and its output must not be read, until Work::wait() has returned. On CUDA call
/// Work::wait() first: work that is enqueued on the current stream after it may use the tensors,
/// and they may then be freed.
///
/// On CUDA an operation runs on the given stream, after the work that this stream already has. If
/// more work is enqueued on that stream later, the Work may be done only after that. Without a
/// given stream it runs on the communicator's own stream, after the work of the current stream. On
/// CPU the stream is ignored, and the operations of one communicator complete in call order; sends
/// and receives only in the order of those with the same peer.
///
/// Tensors must be contiguous and on the communicator's device; output and input of one transfer
/// have the same dtype. Output and input must not overlap, with one exception for operation in
/// place: the input of an all-gather may be exactly this rank's part of the output, and the output
/// of a reduce-scatter exactly this rank's part of the input. Tensors of any dtype can be moved;
/// reductions need floating point of 16 bits or more, or integers (for sums and maxima; nccl can't
/// reduce int16). Wrong arguments throw c10::ValueError before anything is sent; that a CUDA tensor
/// is on this rank's GPU and not on another is not checked.
class SHERD_API Communicator {
 public:
  using OnStream = std::optional<c10::Stream>;

  /// The names of a communicator: for errors, and to find its link in an emulated network.
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
  /// Returns the name of the backend: "mpi", "tcp", "nccl" or "emulated".
  virtual std::string backend() const = 0;

  /// Starts an all-gather: each output receives the inputs of all ranks, in rank order, and has
  /// size() times the input's elements. All transfers are one operation.
  Work all_gather(std::span<const Transfer> transfers, OnStream stream = {});
  Work all_gather(at::Tensor output, at::Tensor input, OnStream stream = {});
  /// Starts a reduce-scatter: each output receives this rank's part of the reduced inputs; the
  /// input has size() times its elements. All transfers are one operation.
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
  /// from and go to each rank; empty means equal parts. This rank's part for itself must have the
  /// same size in both. Output and input must not overlap.
  Work all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits = {},
      std::vector<int64_t> input_splits = {},
      OnStream stream = {});
  /// Starts a send to rank `peer`, which is another one. Sends to one peer arrive in call order. On
  /// CUDA a send may wait for its receive, and later work on the stream with it: ranks that send to
  /// each other at the same time use all_to_all instead.
  Work send(at::Tensor tensor, int64_t peer, OnStream stream = {});
  /// Starts a receive from rank `peer`; `tensor` must have the dtype and size of what is sent.
  Work receive(at::Tensor tensor, int64_t peer, OnStream stream = {});
  /// Starts a barrier: its Work is done when every rank has called it.
  Work barrier();

  /// Returns a new communicator among some ranks of this one. Its operations do not queue behind
  /// those of this one. Collective; blocks: all ranks of this communicator call it at the same
  /// point, each with the list of its own group. The lists of one group must be equal, without
  /// repeats, and contain the calling rank; the new ranks are the positions in the list. `axis` is
  /// `name` if empty. The new communicator may outlive this one. Each nccl communicator takes
  /// device memory (some 250 MiB on an H200). One thread of the process at a time.
  ///
  /// Throws c10::ValueError for a list that is empty, has repeats or numbers out of range, or lacks
  /// the calling rank, on that rank and before anything is sent (the others wait for it), and if
  /// ranks of a group have passed different lists, on all ranks. This communicator stays usable.
  std::shared_ptr<Communicator> split(
      std::vector<int64_t> ranks, const std::string& name, const std::string& axis = "");

 protected:
  Communicator(int64_t rank, int64_t size, Identity identity)
      : rank_(rank), size_(size), identity_(std::move(identity)) {}

  /// Returns the beginning of an error: backend, rank, operation and communicator.
  std::string scope(const char* operation) const;

 private:
  // Note [What a backend implements]
  //
  // A backend overrides backend() and all virtual functions below. do_X starts the operation of the
  // public function X, which has checked this rank's arguments: tensors are defined, contiguous, on
  // device_type() and of matching sizes; the two tensors of a transfer have one dtype, which may be
  // another in the next transfer of the span; tensors overlap only as allowed; ranks are in range,
  // and the peer of a send or receive is another rank; both splits of an all-to-all are complete.
  // An override
  // - accepts an empty span, and tensors without elements;
  // - returns without waiting for another rank; do_split alone blocks. An operation that needs no
  //   other rank may be done in the call, which then returns Work();
  // - copies what it needs of a span. Until the Work is done, the caller keeps the tensors, and the
  //   backend its staging memory;
  // - moves tensors of every dtype; for one that it can't reduce it throws c10::ValueError, before
  //   anything is sent.
  // All ranks of an all-reduce receive the same bits. On CPU, sums of 16-bit floats are added in
  // fp32 and rounded once (kernels/join.h does that); nccl may round at each rank.
  //
  // Order: the operations of a communicator complete in call order (on CPU sends and receives need
  // not, or two ranks that send to each other would wait for ever). Operations of different
  // communicators do not wait for each other.
  //
  // Threads: one thread at a time calls a communicator, several call different ones at once. Work
  // is used by any thread. On CPU an operation goes on without further calls, on a thread of the
  // backend: the caller computes meanwhile and does not poll.
  //
  // Streams: on CUDA, StreamScope (src/comm/streams.h) selects the stream and orders it after the
  // current one, and stream_work() makes the Work. If steps are to be captured into CUDA graphs
  // (StepGraph), an override must not synchronise with the device. On CPU there are no streams.
  //
  // Failures: when an operation fails, a rank that it needs has left, or
  // WorldOptions::operation_timeout has passed, its Work throws c10::DistBackendError with a text
  // that begins with scope(). No rank that waits for it may hang. Later calls may throw at once.
  // On CPU, a wait calls LongWaitScope::look() after every kLongWait (src/comm/long_wait.h), and a
  // communicator should implement HasNotices (src/comm/notices.h): without both, ranks learn of
  // another rank's exception only when the operation has taken its time.
  //
  // do_split throws on all ranks if those of one group passed different lists. The child's ranks
  // are the positions in its list, and it may outlive its parent.
  //
  // A communicator for CUDA may also implement HasHostExchange (src/comm/host_exchange.h), for
  // errors when ranks differ, and HasWindows (src/comm/nccl/symmetric.h), for symmetric memory.
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
