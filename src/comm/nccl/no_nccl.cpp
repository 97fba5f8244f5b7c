// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/backends.h"

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
    const std::shared_ptr<Departures>&) {
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

}  // namespace sherd
