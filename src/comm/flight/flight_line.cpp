// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/flight_line.h"

#include <algorithm>

#include "comm/flight/rank_list.h"

namespace sherd {

uint64_t FlightLine::add(
    const Communicator& communicator,
    std::span<const int64_t> ranks,
    int64_t number,
    Collective kind,
    int64_t bytes,
    bool counted) {
  const int32_t index = counted ? count_++ : -1;  // also without a ring: ranks count alike
  auto* ring = FlightRing::current();
  if (!ring) return 0;
  if (ring != ring_) {
    ring_ = ring;
    name_ = ring->name(
        communicator.name() + '\t' + communicator.axis() + '\t' + short_rank_list(ranks));
  }
  return ring->add(
      {.type = flight::Type::collective,
       .kind = static_cast<uint8_t>(kind),
       .name = name_,
       .index = index,
       .line = static_cast<int32_t>(number),
       .bytes = bytes},
      flight::State::issued);
}

int64_t bytes_of(std::span<const Transfer> transfers) {
  int64_t bytes = 0;
  for (const auto& [output, input] : transfers)
    bytes += static_cast<int64_t>(std::max(output.nbytes(), input.nbytes()));
  return bytes;
}

int64_t bytes_of(std::span<const at::Tensor> tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace sherd
