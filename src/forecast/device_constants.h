// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Memory of a GPU process apart from tensors, as measured on an H200 with CUDA 13. It can't be
// counted in advance; a run measures its own.
namespace sherd {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kContextBytes = 1600 * kMiB;   ///< CUDA context, with NCCL's code
inline constexpr int64_t kLibraryBytes = 150 * kMiB;    ///< kernel code, cuBLAS and cuDNN
inline constexpr int64_t kWorkspaceBytes = 192 * kMiB;  ///< matrix products, in torch's allocator
inline constexpr int64_t kCommunicatorBytes = 250 * kMiB;  ///< each NCCL communicator

/// NCCL communicators of a world (its own, and one for agreement), of each mesh axis to shard over
/// (its own, one for gathers, one for reductions), and of each along which ranks exchange
/// activations (its own, one for the exchanges).
inline constexpr int64_t kCommunicators = 2;
inline constexpr int64_t kCommunicatorsOfAxis = 3;
inline constexpr int64_t kCommunicatorsOfExchange = 2;

}  // namespace sherd
