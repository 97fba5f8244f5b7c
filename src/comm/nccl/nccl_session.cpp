// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_session.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "comm/departures.h"
#include "comm/mpi/mpi_session.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/open_connections.h"
#include "comm/rendezvous.h"

namespace sherd {
namespace {

/// The links between the ranks of an nccl world apart from NCCL. Its end announces this rank's
/// departure.
struct RankLinks {
  RankLinks() = default;
  ~RankLinks() {
    if (departures) departures->leave();
  }
  RankLinks(const RankLinks&) = delete;
  RankLinks& operator=(const RankLinks&) = delete;

  std::unique_ptr<Session> mpi;            // null unless an MPI launcher started the ranks
  std::shared_ptr<Departures> departures;  // null for a process alone
};

class NcclSession final : public Session {
 public:
  NcclSession(
      Location location,
      std::shared_ptr<Communicator> communicator,
      std::unique_ptr<RankLinks> links)
      : Session(location, std::move(communicator)), links_(std::move(links)) {}

  ~NcclSession() override {
    // Operations under way are completed before the departure is announced, unless an exception
    // ended them.
    if (std::uncaught_exceptions() > 0 && links_->departures) links_->departures->leave();
    close_communicators();
  }

 private:
  std::unique_ptr<RankLinks> links_;
};

c10::Device choose_gpu(const Launch& launch) {
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

c10::Device device_of_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  TORCH_CHECK_VALUE(group.defined(), "[comm.world] the process group is undefined");
  TORCH_CHECK_VALUE(
      gpu_count() > 0,
      "[comm.world] a process group is used over nccl, but this process sees no GPU");
  const c10::Device current(c10::kCUDA, c10::cuda::current_device());
  return group->getBoundDeviceId().value_or(current);
}

}  // namespace

std::unique_ptr<Session> open_nccl(const Launch& launch, const WorldOptions& options) {
  const Session::Location location{
      launch.launcher, launch.local_rank, launch.local_size, choose_gpu(launch)};
  const bool alone = launch.launcher == Launcher::alone;
  auto links = std::make_unique<RankLinks>();
  if (launch.has_mpi) links->mpi = open_mpi(launch, options);
  auto store = alone        ? lone_store()
               : links->mpi ? shared_store(links->mpi->communicator(), options.start_timeout)
                            : meet_at_launchers_store(launch, options.start_timeout);
  if (!alone) {
    links->departures = std::make_shared<Departures>(store, launch.rank);
    leave_at_exit(links->departures);
  }
  auto communicator = nccl_communicator(
      store, launch.rank, launch.size, location.device, options, links->departures);
  return std::make_unique<NcclSession>(location, std::move(communicator), std::move(links));
}

std::unique_ptr<Session> open_nccl_over(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options) {
  const auto device = device_of_group(group);
  const Session::Location location{Launcher::caller, device.index(), gpu_count(), device};
  return std::make_unique<Session>(location, nccl_communicator(group, device, options));
}

int64_t gpu_count() {
  return c10::cuda::device_count();
}

std::string cuda_version() {
  const auto gpus = gpu_count();
  return c10::str(
      CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10, ", nccl ", NCCL_MAJOR, ".",
      NCCL_MINOR, ".", NCCL_PATCH,
      gpus == 0 ? ", no GPU here" : c10::str(", ", gpus, gpus == 1 ? " GPU" : " GPUs"));
}

}  // namespace sherd
