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
#include "sherd/kernels/reduction.h"

namespace sherd {

/// A started operation. Cheap to copy; dropping it does not stop the operation.
class SHERD_API Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual void synchronize() = 0;
    virtual bool done() = 0;
  };

  Work() = default;  ///< of something already done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// CPU: blocks until the result is there. CUDA: makes the current stream wait for it; the host
  /// goes on. Throws what has gone wrong, on this rank or another; on CUDA, what is known by then.
  void wait() {
    if (state_) state_->wait();
  }
  /// Blocks the host until the result is there. Throws as wait() does, also when the time is up.
  void synchronize() {
    if (state_) state_->synchronize();
  }
  /// Whether the result is there, without waiting.
  bool done() { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

/// One buffer of a grouped collective.
struct Transfer {
  at::Tensor output;
  at::Tensor input;
};

/// The operations that sharding needs, among the ranks of one axis of a mesh.
///
/// Every rank of a communicator makes the same calls in the same order. An operation is
/// asynchronous: on return it is started, and its tensors must neither be freed nor written (the
/// output not read) until its Work is done. On CUDA it runs on the given stream, after what that
/// stream already holds, and its Work may last until what that stream got later is done; without
/// one, on the communicator's own stream, after what the current stream holds. On CPU the stream is
/// ignored, and operations of one communicator complete in the order of their calls.
///
/// Tensors are contiguous, of one dtype and on the communicator's device. Output and input must not
/// overlap, with one exception: this rank's own part of a gather's output or of a reduction's
/// input, exactly, may be the other side (the operation is then in place).
class SHERD_API Communicator {
 public:
  using OnStream = std::optional<c10::Stream>;

  /// What errors and the emulated network know it by.
  struct Identity {
    std::string name;
    std::string axis;
    int64_t world_rank = 0;
  };

  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }
  /// This rank's place in the world, which errors name.
  int64_t world_rank() const { return identity_.world_rank; }
  /// The axis or purpose it serves; part of every error.
  const std::string& name() const { return identity_.name; }
  /// The mesh axis that it runs along: its name, unless it was split off for a purpose.
  const std::string& axis() const { return identity_.axis; }
  /// "mpi", "nccl" or "emulated".
  virtual std::string backend() const = 0;

  /// Each output takes the ranks' inputs one after another; all transfers are one operation.
  Work all_gather(std::span<const Transfer> transfers, OnStream stream = {});
  Work all_gather(at::Tensor output, at::Tensor input, OnStream stream = {});
  /// Each output takes this rank's part of the joined inputs; all transfers are one operation.
  Work reduce_scatter(
      std::span<const Transfer> transfers, Reduction reduction, OnStream stream = {});
  Work reduce_scatter(
      at::Tensor output, at::Tensor input, Reduction reduction, OnStream stream = {});
  /// In place; all tensors are one operation.
  Work all_reduce(std::span<const at::Tensor> tensors, Reduction reduction, OnStream stream = {});
  Work all_reduce(at::Tensor tensor, Reduction reduction, OnStream stream = {});
  Work broadcast(at::Tensor tensor, int64_t root, OnStream stream = {});
  /// Equal parts, or `output_splits` and `input_splits` elements from and to each rank.
  Work all_to_all(
      at::Tensor output,
      at::Tensor input,
      std::vector<int64_t> output_splits = {},
      std::vector<int64_t> input_splits = {},
      OnStream stream = {});
  /// Sends to one peer arrive in the order of the calls. On CUDA a send may wait for its receive
  /// and what follows it on the stream with it, so ranks that send to each other at once use
  /// all_to_all.
  Work send(at::Tensor tensor, int64_t peer, OnStream stream = {});
  Work receive(at::Tensor tensor, int64_t peer, OnStream stream = {});
  /// Done when every rank has called it.
  Work barrier();

  /// A communicator among `ranks` (of this one, distinct; this rank is among them). All ranks call
  /// it at the same point, each with the list of its own group; the lists of a group must be equal.
  /// Blocks.
  /// One thread at a time. `axis` is `name` if empty.
  std::shared_ptr<Communicator> split(
      std::vector<int64_t> ranks, const std::string& name, const std::string& axis = "");

 protected:
  Communicator(int64_t rank, int64_t size, Identity identity)
      : rank_(rank), size_(size), identity_(std::move(identity)) {}

  /// The prefix of an error: scope, rank, operation and communicator.
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
