// SPDX-License-Identifier: Apache-2.0
#include "kernels/runs_table.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace sherd {

std::vector<Chunk> chunks_of(std::span<const int64_t> counts) {
  std::vector<Chunk> chunks;
  for (size_t run = 0; run < counts.size(); ++run) {
    for (int64_t begin = 0; begin < counts[run]; begin += kChunk) {
      const auto count = std::min(kChunk, counts[run] - begin);
      chunks.push_back({static_cast<int32_t>(run), static_cast<int32_t>(count), begin});
    }
  }
  return chunks;
}

at::Tensor bytes_on_device(const void* data, int64_t bytes, c10::Device device) {
  auto host = at::empty({bytes}, at::kByte);
  if (bytes > 0) std::memcpy(host.mutable_data_ptr(), data, static_cast<size_t>(bytes));
  return host.to(device);
}

}  // namespace sherd
