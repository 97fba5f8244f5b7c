// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "sherd/comm/communicator.h"
#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace c10d {
class ProcessGroup;
}

namespace sherd {

class Session;

/// The program that started the ranks. `alone`: no launcher. `caller`: see World::over.
enum class Launcher : uint8_t { alone, mpirun, torchrun, srun, emulated, caller };
/// Returns the launcher's name.
SHERD_API const char* to_text(Launcher launcher);

/// The library that moves tensors between processes: mpi on CPU, nccl between GPUs.
enum class Backend : uint8_t { mpi, nccl };

/// Options of a world. Must be equal on all ranks.
struct WorldOptions {
  /// Which backend to use. Default: nccl if this build has CUDA and this machine a GPU, else mpi.
  std::optional<Backend> backend{};
  /// How long to wait for all ranks to arrive.
  std::chrono::milliseconds start_timeout{60'000};
  /// How long an operation may take. Over mpi it counts from when the operation starts, over nccl
  /// from the call, work ahead of it on the stream included. After that it throws an error that
  /// names the operation and, over mpi, the ranks that it waited for. Such a failure is final: over
  /// mpi all operations of all ranks throw it from then on; over nccl the communicator is aborted,
  /// and its later operations throw.
  std::chrono::milliseconds operation_timeout{600'000};
  /// nccl: whether operations without a given stream run on a stream of high priority.
  bool high_priority_stream = true;
  /// nccl: largest number of CTAs (thread blocks) of a collective; 0 leaves it to NCCL.
  int max_ctas = 0;
};

/// Settings of an emulated world: one process acts as one rank of many, to try out memory and
/// speed. Nothing is sent. An all-gather fills every rank's part with this rank's shard; a
/// reduction returns this rank's part of its input (times the factor of a scaled sum); a broadcast
/// changes nothing, a receive gives zeros, and an all-to-all returns this rank's own parts, cut or
/// filled up with zeros.
struct Emulation {
  int64_t rank = 0;                ///< index of the rank that this process is
  int64_t size = 1;                ///< number of ranks, 1 to 65,536
  c10::Device device = c10::kCPU;  ///< where its tensors are
  /// If given, each collective takes the time that it would take on this network: on CPU its Work
  /// is not done sooner, on CUDA its stream is busy that long. Default: no extra time.
  std::optional<Network> network{};
  /// CUDA: number of SMs that a collective keeps busy during that time.
  int sms = 8;
};

/// All ranks of a run, and this one's index among them. A handle that is cheap to copy, held by
/// meshes and models too; destroying the last handle closes the world (see close()).
class SHERD_API World {
 public:
  /// Returns the world that mpirun, torchrun or srun started this process in, or a world of one
  /// rank. Collective; blocks until all ranks have arrived. May be called several times; each world
  /// has communicators of its own. MPI can be started only once in a process: with MPI, a call
  /// after the last world was closed throws.
  ///
  /// If some ranks do not arrive in time, it throws on all ranks that did and names the missing
  /// ones (over mpi, those of its own machine); if ranks disagree on the world's size, it throws
  /// and names both sizes. Throws c10::ValueError if CPU ranks were not started by an MPI launcher,
  /// if nccl is chosen without a GPU or with more ranks than GPUs on a machine, and if the
  /// launcher's variables are missing or contradict each other; c10::Error if this build lacks the
  /// backend.
  static World from_environment(const WorldOptions& options = {});
  /// Returns one rank of a world without other processes; see Emulation. Not collective. Throws if
  /// rank, size or sms is out of range, and for a CUDA device in a build without CUDA.
  static World emulated(const Emulation& emulation);
  /// Returns a world over an existing c10d process group with an nccl backend, on the device that
  /// the group is bound to, or else the current one. Closing the group is left to the caller, but
  /// an operation that fails or takes too long aborts it. local_rank() is the device's index and
  /// local_size() the number of GPUs that this process may use. Collective. Throws if the group is
  /// undefined or its CUDA backend is not nccl, without a GPU, and in a build without CUDA.
  static World over(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options = {});

  /// Leaves all worlds of this process. Tells the other ranks, so that operations which this rank
  /// will never join throw there and name it. With MPI it first completes the operations that this
  /// rank has started, then blocks until the other ranks leave too, at most operation_timeout (20 s
  /// after a failure), and finishes MPI, because otherwise mpirun would report a crash. (If the
  /// program has started MPI itself, which needs MPI_THREAD_MULTIPLE, finishing it is left to the
  /// program.) MPI operations after it throw; nccl operations are not refused, but must not be
  /// started. Emulated worlds and process groups of the caller are not affected.
  ///
  /// The destruction of the last World does the same, and so does std::exit(). Call it where a
  /// World may outlive its use: at the end of main, and after an error. May be called on any thread
  /// and repeatedly; does not throw.
  static void close() noexcept;

  int64_t rank() const { return communicator().rank(); }  ///< this rank's index
  int64_t size() const { return communicator().size(); }  ///< number of ranks
  int64_t local_rank() const;                             ///< index among this machine's ranks
  int64_t local_size() const;                             ///< number of ranks on this machine
  /// Returns the program that started the ranks.
  Launcher launcher() const;
  /// Returns the device of this rank's tensors.
  c10::Device device() const;
  /// Returns the communicator among all ranks.
  Communicator& communicator() const;
  /// Returns another communicator among all ranks, one for each purpose. The first call for a
  /// purpose opens it, is collective and blocks; later calls return the same one. One thread at a
  /// time.
  Communicator& communicator(const std::string& purpose) const;

 private:
  explicit World(std::shared_ptr<Session> session) : session_(std::move(session)) {}
  std::shared_ptr<Session> session_;
};

}  // namespace sherd
