// SPDX-License-Identifier: Apache-2.0
#include "device/graph_random.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

namespace sherd {
namespace {

// While a graph is captured, torch refuses to read or set the state of a generator. The offset in
// the graph is a plain number that kernels get as it is at their capture, so it is reached by an
// explicit instantiation, which may name private members. If a later version renames it, this does
// not compile.
c10::intrusive_ptr<at::CUDAGeneratorState>& state_of(at::CUDAGeneratorImpl& generator);

template <auto Member>
struct Reach {
  friend c10::intrusive_ptr<at::CUDAGeneratorState>& state_of(at::CUDAGeneratorImpl& generator) {
    return generator.*Member;
  }
};
template struct Reach<&at::CUDAGeneratorImpl::state_>;

template <class Visitor>
auto with_offset(c10::Device device, Visitor visitor) {
  auto generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
  const std::lock_guard lock(generator.mutex());
  return visitor(state_of(*generator.get<at::CUDAGeneratorImpl>())->offset_intragraph_);
}

}  // namespace

uint64_t random_offset_in_graph(c10::Device device) {
  return with_offset(device, [](uint64_t& offset) { return offset; });
}

void set_random_offset_in_graph(c10::Device device, uint64_t offset) {
  with_offset(device, [&](uint64_t& current) { current = offset; });
}

}  // namespace sherd
