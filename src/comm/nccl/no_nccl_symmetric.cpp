// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "comm/nccl/symmetric.h"

namespace sherd {
namespace {

[[noreturn]] void refuse_windows() {
  TORCH_CHECK_VALUE(
      false,
      "[comm.symmetric] symmetric memory is NCCL's, and this build of Sherd has no CUDA: put nvcc "
      "on PATH and build again, or leave [memory] symmetric off");
}

}  // namespace

at::Tensor symmetric_memory(int64_t, c10::Device) {
  refuse_windows();
}

std::unique_ptr<Window> register_window(Communicator&, const at::Tensor&) {
  refuse_windows();
}

std::string symmetric_text(Communicator&) {
  return "NCCL's symmetric kernels: no, this build has no CUDA";
}

}  // namespace sherd
