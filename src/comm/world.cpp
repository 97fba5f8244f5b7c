// SPDX-License-Identifier: Apache-2.0
#include "sherd/comm/world.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "comm/backends.h"
#include "comm/departures.h"
#include "comm/launch.h"
#include "comm/rendezvous.h"

namespace sherd {

struct World::State {
  State() = default;
  ~State() {
    // Operations under way are completed before the departure is announced, unless an exception
    // ended them.
    if (std::uncaught_exceptions() > 0 && departures) departures->announce();
    for_purpose.clear();
    communicator.reset();
    if (departures) departures->announce();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Launcher launcher = Launcher::alone;
  int64_t local_rank = 0;
  int64_t local_size = 1;
  c10::Device device = c10::kCPU;
  std::shared_ptr<Engine> engine;          // mpi, or where mpirun started nccl ranks
  std::shared_ptr<Departures> departures;  // nccl
  std::shared_ptr<Communicator> communicator;
  std::map<std::string, std::shared_ptr<Communicator>> for_purpose;
};

namespace {

/// The worlds that the process must close before it ends. Never destroyed: exit() may run while
/// static objects are being destroyed.
struct OpenWorlds {
  std::mutex mutex;
  pid_t process = getpid();
  std::weak_ptr<Engine> engine;
  std::vector<std::weak_ptr<Departures>> departures;
};

OpenWorlds& open_worlds() {
  static auto& open = *[] {
    // A process that calls exit() without closing its worlds: registered when the first is opened,
    // it runs before what was there earlier is torn down. A fork has no part in them.
    std::atexit([] {
      if (getpid() == open_worlds().process) World::close();
    });
    return new OpenWorlds();
  }();
  return open;
}

/// MPI can be started once in a process, so worlds that live at the same time share its engine.
std::shared_ptr<Engine> engine_of_process(const Launch& launch, const WorldOptions& options) {
  auto& open = open_worlds();
  std::lock_guard lock(open.mutex);
  auto engine = open.engine.lock();
  if (!engine) {
    auto transport = launch.size == 1 ? lone_transport() : mpi_transport(options.start_timeout);
    engine = std::make_shared<Engine>(std::move(transport), options.operation_timeout);
    open.engine = engine;
  }
  return engine;
}

std::shared_ptr<Departures> make_departures(
    const c10::intrusive_ptr<c10d::Store>& store, const Launch& launch) {
  auto departures = std::make_shared<Departures>(store, launch.rank);
  auto& open = open_worlds();
  std::lock_guard lock(open.mutex);
  open.departures.push_back(departures);
  return departures;
}

/// The ranks of a launcher without MPI meet at one store per process; each world has its own keys
/// there.
c10::intrusive_ptr<c10d::Store> meet_in_process(const Launch& launch, const WorldOptions& options) {
  static std::mutex mutex;
  static int64_t worlds = 0;
  // Never closed: its server may have to answer other ranks until the process ends.
  static auto& store = *new c10::intrusive_ptr<c10d::Store>();
  std::lock_guard lock(mutex);
  if (!store.defined()) store = open_store(launch, options.start_timeout);
  auto keys = c10::make_intrusive<c10d::PrefixStore>(c10::str("sherd/", worlds++), store);
  await_all_ranks(*keys, launch, options.start_timeout);
  return keys;
}

c10::Device device_of(Backend backend, const Launch& launch) {
  if (backend == Backend::mpi) return c10::kCPU;
  const int64_t gpus = gpu_count();
  TORCH_CHECK_VALUE(
      gpus > 0, "[comm.world] the backend is nccl, but rank ", launch.rank,
      " sees no GPU: use a machine with one and a build with CUDA, or the backend mpi");
  TORCH_CHECK_VALUE(
      launch.local_size <= gpus || std::getenv("NCCL_HOSTID") != nullptr, "[comm.world] ",
      launch.local_size, " ranks on this machine, but ", gpus, gpus == 1 ? " GPU" : " GPUs",
      ": NCCL gives each rank one of its own. Start fewer ranks, or, ",
      "to try things out, give each rank its own NCCL_HOSTID");
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(launch.local_rank % gpus)};
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
  const auto backend = options.backend.value_or(gpu_count() > 0 ? Backend::nccl : Backend::mpi);
  const bool alone = launch.launcher == Launcher::alone;
  TORCH_CHECK_VALUE(
      backend == Backend::nccl || alone || launch.has_mpi, "[comm.world] ",
      to_text(launch.launcher),
      " started CPU ranks, which talk through MPI: start them with mpirun -n ", launch.size,
      launch.launcher == Launcher::srun ? ", with srun --mpi=pmix" : "", " or with --ranks ",
      launch.size);

  auto state = std::make_shared<State>();
  state->launcher = launch.launcher;
  state->local_rank = launch.local_rank;
  state->local_size = launch.local_size;
  state->device = device_of(backend, launch);
  if (backend == Backend::mpi || launch.has_mpi) {
    state->engine = engine_of_process(launch, options);
    state->communicator = mpi_communicator(state->engine, options.operation_timeout);
  }
  if (backend == Backend::nccl) {
    c10::intrusive_ptr<c10d::Store> store;
    if (alone) {
      store = lone_store();
    } else if (launch.has_mpi) {
      store = shared_store(*state->communicator, options.start_timeout);
    } else {
      store = meet_in_process(launch, options);
    }
    if (!alone) state->departures = make_departures(store, launch);
    state->communicator = nccl_communicator(
        store, launch.rank, launch.size, state->device, options, state->departures);
  }
  return World(std::move(state));
}

void World::close() noexcept {
  auto& open = open_worlds();
  std::shared_ptr<Engine> engine;
  std::vector<std::weak_ptr<Departures>> worlds;
  {
    std::lock_guard lock(open.mutex);
    engine = open.engine.lock();
    worlds.swap(open.departures);
  }
  for (const auto& world : worlds) {
    if (const auto departures = world.lock()) departures->announce();
  }
  if (engine) engine->close();
}

World World::emulated(const Emulation& emulation) {
  auto resolved = emulation;
  if (resolved.device.is_cuda() && !resolved.device.has_index()) resolved.device.set_index(0);
  auto state = std::make_shared<State>();
  state->launcher = Launcher::emulated;
  state->device = resolved.device;
  state->communicator = emulated_communicator(resolved);
  return World(std::move(state));
}

World World::over(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options) {
  auto state = std::make_shared<State>();
  state->launcher = Launcher::caller;
  state->device = device_of_group(group);
  state->local_rank = state->device.index();
  state->local_size = gpu_count();
  state->communicator = nccl_communicator(group, state->device, options);
  return World(std::move(state));
}

int64_t World::local_rank() const {
  return state_->local_rank;
}
int64_t World::local_size() const {
  return state_->local_size;
}
Launcher World::launcher() const {
  return state_->launcher;
}
c10::Device World::device() const {
  return state_->device;
}
Communicator& World::communicator() const {
  return *state_->communicator;
}
Communicator& World::communicator(const std::string& purpose) const {
  auto& known = state_->for_purpose[purpose];
  if (!known) {
    std::vector<int64_t> all(static_cast<size_t>(size()));
    std::iota(all.begin(), all.end(), int64_t{0});
    known = communicator().split(std::move(all), purpose);
  }
  return *known;
}

}  // namespace sherd
