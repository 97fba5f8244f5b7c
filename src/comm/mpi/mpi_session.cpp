// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_session.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "comm/engine/engine.h"
#include "comm/engine/engine_communicator.h"
#include "comm/engine/transport.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/open_connections.h"

namespace sherd {
namespace {

std::shared_ptr<Engine> engine_of_process(const Launch& launch, const WorldOptions& options) {
  static std::mutex mutex;
  static auto& shared = *new std::weak_ptr<Engine>();  // never destroyed: exit() may still use it
  const std::lock_guard lock(mutex);
  auto engine = shared.lock();
  if (!engine) {
    auto transport =
        launch.size == 1 ? lone_transport("mpi") : mpi_transport(options.start_timeout);
    engine = std::make_shared<Engine>(std::move(transport), options.operation_timeout);
    leave_at_exit(engine);
    shared = engine;
  }
  return engine;
}

}  // namespace

std::unique_ptr<Session> open_mpi(const Launch& launch, const WorldOptions& options) {
  TORCH_CHECK_VALUE(
      launch.has_mpi || launch.launcher == Launcher::alone, "[comm.world] ",
      to_text(launch.launcher),
      " started CPU ranks without MPI, but the backend mpi was chosen: use the backend tcp, or ",
      "start the ranks with mpirun -n ", launch.size,
      launch.launcher == Launcher::srun ? ", with srun --mpi=pmix" : "", " or with --ranks ",
      launch.size);
  const Session::Location location{
      launch.launcher, launch.local_rank, launch.local_size, c10::kCPU};
  // The communicators keep the engine alive, so that it ends with the last of them.
  return std::make_unique<Session>(
      location, engine_communicator(engine_of_process(launch, options), options.operation_timeout));
}

}  // namespace sherd
