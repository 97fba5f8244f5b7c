// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace sherd {

/// A stretch of a run that one block of threads takes.
struct Chunk {
  int32_t run = 0;
  int32_t count = 0;
  int64_t begin = 0;
};
constexpr int64_t kChunk = 1 << 14;  // elements

/// Cuts runs of the given lengths into chunks, in order. A run without elements has none.
std::vector<Chunk> chunks_of(std::span<const int64_t> counts);

/// Plain values, where the device's kernels can read them. Blocks; not for a step.
template <class T>
at::Tensor on_device(const std::vector<T>& values, c10::Device device);
at::Tensor bytes_on_device(const void* data, int64_t bytes, c10::Device device);

template <class T>
at::Tensor on_device(const std::vector<T>& values, c10::Device device) {
  static_assert(std::is_trivially_copyable_v<T>);
  return bytes_on_device(values.data(), static_cast<int64_t>(values.size() * sizeof(T)), device);
}

}  // namespace sherd
