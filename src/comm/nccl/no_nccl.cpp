// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/nccl/nccl_session.h"

namespace sherd {
namespace {

[[noreturn]] void refuse_nccl() {
  TORCH_CHECK(
      false, "[comm.nccl] this build of Sherd has no CUDA: put nvcc on PATH and build again");
}

}  // namespace

std::unique_ptr<Session> open_nccl(const Launch&, const WorldOptions&) {
  refuse_nccl();
}

std::unique_ptr<Session> open_nccl_over(
    const c10::intrusive_ptr<c10d::ProcessGroup>&, const WorldOptions&) {
  refuse_nccl();
}

int64_t gpu_count() {
  return 0;
}

std::string cuda_version() {
  return "none (a CPU build)";
}

}  // namespace sherd
