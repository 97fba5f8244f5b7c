// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// What a GPU process takes before and beside any tensor. Nobody can count it beforehand; these are
// what an H200 with CUDA 13 showed. A run measures its own.
namespace sherd {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kContextBytes = 1600 * kMiB;   ///< of the CUDA context, with NCCL's code
inline constexpr int64_t kLibraryBytes = 150 * kMiB;    ///< kernels' code, cuBLAS and cuDNN
inline constexpr int64_t kWorkspaceBytes = 192 * kMiB;  ///< of products, in torch's allocator
inline constexpr int64_t kCommunicatorBytes = 250 * kMiB;  ///< NCCL, each

/// The world's and one for control; and an axis's own, one for gathers and one for reductions.
inline constexpr int64_t kCommunicators = 2;
inline constexpr int64_t kCommunicatorsOfAxis = 3;

/// Of a layer's products, those that selective recomputation makes again: gate and up.
inline constexpr double kSelectiveShare = 0.45;

}  // namespace sherd
