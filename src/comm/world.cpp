// SPDX-License-Identifier: Apache-2.0
#include "sherd/comm/world.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/backends.h"
#include "comm/emulated/emulated_session.h"
#include "comm/launch.h"
#include "comm/nccl/nccl_session.h"
#include "comm/open_connections.h"
#include "comm/session.h"
#include "comm/tcp/tcp_session.h"

namespace sherd {
namespace {

bool has_device(const c10d::ProcessGroup& group, c10::DeviceType type) {
  const auto devices = group.getDeviceTypes();
  return std::any_of(
      devices.begin(), devices.end(), [&](const auto& device) { return device.type() == type; });
}

}  // namespace

const char* to_text(Launcher launcher) {
  switch (launcher) {
    case Launcher::alone: return "alone";
    case Launcher::mpirun: return "mpirun";
    case Launcher::torchrun: return "torchrun";
    case Launcher::srun: return "srun";
    case Launcher::emulated: return "emulated";
    case Launcher::caller: return "caller";
  }
  return "?";
}

World World::from_environment(const WorldOptions& options) {
  const auto launch = launch_from_environment();
  return World(find_backend(options, launch).open(launch, options));
}

World World::emulated(const Emulation& emulation) {
  return World(open_emulated(emulation));
}

World World::over(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options) {
  TORCH_CHECK_VALUE(group.defined(), "[comm.world] the process group is undefined");
  const bool on_gpu = has_gpu() && has_device(*group, c10::kCUDA);
  if (options.device.value_or(on_gpu ? c10::kCUDA : c10::kCPU) == c10::kCUDA)
    return World(open_nccl_over(group, options));
  return over(group->getStore(), group->getRank(), group->getSize(), options);
}

World World::over(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    const WorldOptions& options) {
  return World(open_tcp_over(store, rank, size, options));
}

void World::close() noexcept {
  leave_all();
}

int64_t World::local_rank() const {
  return session_->location().local_rank;
}
int64_t World::local_size() const {
  return session_->location().local_size;
}
Launcher World::launcher() const {
  return session_->location().launcher;
}
c10::Device World::device() const {
  return session_->location().device;
}
Communicator& World::communicator() const {
  return session_->communicator();
}
Communicator& World::communicator(const std::string& purpose) const {
  return session_->communicator(purpose);
}

}  // namespace sherd
