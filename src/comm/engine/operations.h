// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/engine/operation.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// The ranks that take part in an operation, and the tag of its messages.
struct Members {
  std::shared_ptr<const std::vector<int64_t>> ranks;  ///< world rank of each member
  int64_t rank = 0;                                   ///< this rank's index in the communicator
  int tag = 0;                                        ///< see Note [Tags]

  int64_t size() const { return std::ssize(*ranks); }
  int64_t world_rank(int64_t member) const { return (*ranks)[static_cast<size_t>(member)]; }
  /// Calls `visit` with each other member. Each rank starts with its right neighbour, so that they
  /// do not all send to the same one first.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int64_t i = 1; i < size(); ++i) visit((rank + i) % size());
  }
};

/// Returns the address of a tensor's first byte.
inline char* data_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
}

using OperationPtr = std::shared_ptr<Operation>;

// Each function below returns the state machine of one operation, for Engine::submit(). It keeps
// the tensors alive until it is destroyed. Arguments were checked by Communicator. `scope` is the
// beginning of its errors.

OperationPtr make_all_gather(std::string scope, Members, std::span<const Transfer>);
OperationPtr make_reduce_scatter(std::string scope, Members, std::span<const Transfer>, Reduction);
OperationPtr make_all_reduce(std::string scope, Members, std::span<const at::Tensor>, Reduction);
OperationPtr make_broadcast(std::string scope, Members, at::Tensor tensor, int64_t root);
OperationPtr make_all_to_all(
    std::string scope,
    Members,
    at::Tensor output,
    at::Tensor input,
    std::vector<int64_t> output_splits,
    std::vector<int64_t> input_splits);
OperationPtr make_send(std::string scope, Members, at::Tensor tensor, int64_t peer);
OperationPtr make_receive(std::string scope, Members, at::Tensor tensor, int64_t peer);
OperationPtr make_barrier(std::string scope, Members);

}  // namespace sherd
