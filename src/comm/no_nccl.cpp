// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/backends.h"
#include "comm/streams.h"

namespace sherd {
namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(
      false, "[comm.nccl] this build of Sherd has no CUDA: put nvcc on PATH and build again");
}

}  // namespace

std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::Store>&,
    int64_t,
    int64_t,
    c10::Device,
    const WorldOptions&,
    const std::shared_ptr<Farewell>&) {
  refuse();
}

std::shared_ptr<Communicator> nccl_communicator(
    const c10::intrusive_ptr<c10d::ProcessGroup>&, c10::Device, const WorldOptions&) {
  refuse();
}

int64_t gpu_count() {
  return 0;
}
c10::Device device_of_group(const c10::intrusive_ptr<c10d::ProcessGroup>&) {
  refuse();
}
std::string cuda_version() {
  return "none (a CPU build)";
}

c10::Stream communication_stream(c10::Device, bool) {
  refuse();
}

c10::Stream current_stream(c10::Device) {
  refuse();
}

std::shared_ptr<Work::State> stream_work(
    c10::Stream, std::string, std::shared_ptr<StreamWatch>, std::chrono::milliseconds) {
  refuse();
}

// Nothing makes one here, but a shared pointer to it must know how it ends.
StreamWatch::~StreamWatch() = default;

StreamScope::StreamScope(Communicator::OnStream, c10::Stream own) : stream_(own), previous_(own) {
  refuse();
}
StreamScope::~StreamScope() = default;

}  // namespace sherd
