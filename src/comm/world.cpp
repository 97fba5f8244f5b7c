// SPDX-License-Identifier: Apache-2.0
#include "sherd/comm/world.h"

#include "comm/backends.h"
#include "comm/emulated/emulated_session.h"
#include "comm/launch.h"
#include "comm/nccl/nccl_session.h"
#include "comm/open_connections.h"
#include "comm/session.h"

namespace sherd {

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
  return World(find_backend(options.backend).open(launch, options));
}

World World::emulated(const Emulation& emulation) {
  return World(open_emulated(emulation));
}

World World::over(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options) {
  return World(open_nccl_over(group, options));
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
