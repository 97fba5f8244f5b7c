// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi/engine.h"
#include "sherd/comm/communicator.h"

namespace sherd {

/// Who takes part in an operation, and under which tag its messages travel.
struct Members {
  std::shared_ptr<const std::vector<int64_t>> ranks;  ///< of the world, by rank in the communicator
  int64_t rank = 0;                                   ///< this one's, in the communicator
  int tag = 0;

  int64_t size() const { return std::ssize(*ranks); }
  int64_t world_rank(int64_t member) const { return (*ranks)[static_cast<size_t>(member)]; }
  /// The other members, each rank starting with its right neighbour so that none is everybody's
  /// first.
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int64_t i = 1; i < size(); ++i) visit((rank + i) % size());
  }
};

inline char* data_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
}

using OperationPtr = std::shared_ptr<Operation>;

// Each makes the state machine of one collective; tensors are kept alive until it is destroyed.
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
