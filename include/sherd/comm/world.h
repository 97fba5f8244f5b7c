// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
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
class Store;
}  // namespace c10d

namespace sherd {

class Session;

/// The program that started the ranks. `alone`: no launcher. `caller`: see World::over.
enum class Launcher : uint8_t { alone, mpirun, torchrun, srun, emulated, caller };
/// Returns the launcher's name.
SHERD_API const char* to_text(Launcher launcher);

/// What moves tensors between processes: nccl between GPUs; on CPU MPI, or tcp: sockets of Sherd's
/// own, which need no MPI.
enum class Backend : uint8_t { mpi, nccl, tcp };

/// Options of a world. Must be equal on all ranks, but for `interface`.
struct WorldOptions {
  /// Which backend to use. Default: the device's; on CPU mpi if the launcher starts MPI (mpirun,
  /// srun --mpi=pmix), else tcp.
  std::optional<Backend> backend{};
  /// Where the ranks' tensors are: kCPU or kCUDA. Default: kCUDA if this build has CUDA and this
  /// machine a GPU, else kCPU.
  std::optional<c10::DeviceType> device{};
  /// How long to wait for all ranks to arrive.
  std::chrono::milliseconds start_timeout{60'000};
  /// How long an operation may take. On CPU it counts from when the operation starts, over nccl
  /// from the call, work ahead of it on the stream included. After that it throws an error that
  /// names the operation and, on CPU, the ranks that it waited for. Such a failure is final: on CPU
  /// all operations of all ranks throw it from then on; over nccl the communicator is aborted, and
  /// its later operations throw.
  std::chrono::milliseconds operation_timeout{600'000};
  /// nccl: whether operations without a given stream run on a stream of high priority.
  bool high_priority_stream = true;
  /// nccl: largest number of CTAs (thread blocks) of a collective; 0 leaves it to NCCL.
  int max_ctas = 0;
  /// tcp: the network interface ("eth0"), or the address of this machine, at which this rank
  /// listens for the others while the world opens. May differ between ranks. Default: the
  /// environment variable SHERD_INTERFACE, else the address from which the ranks' store is reached.
  std::string interface {};
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
  /// and names both sizes. Throws c10::ValueError if a backend is chosen that the launcher or the
  /// machine does not suit (mpi without an MPI launcher, nccl without a GPU or with more ranks than
  /// GPUs), and if the launcher's variables are missing or contradict each other; c10::Error if
  /// this build lacks the backend, and over tcp if a rank may open too few files: it has a
  /// connection to each other rank.
  static World from_environment(const WorldOptions& options = {});
  /// Returns one rank of a world without other processes; see Emulation. Not collective. Throws if
  /// rank, size or sms is out of range, and for a CUDA device in a build without CUDA.
  static World emulated(const Emulation& emulation);
  /// Returns a world over an existing c10d process group. If it serves CUDA and this machine has a
  /// GPU, that is over its nccl backend, on the device that the group is bound to, or else the
  /// current one. Closing the group is left to the caller, but an operation that fails or takes too
  /// long aborts it. local_rank() is the device's index and local_size() the number of GPUs that
  /// this process may use. Otherwise, or with `device` kCPU, it is a world of CPU ranks that meet
  /// at the group's store: see the other over(). Collective. Throws if the group is undefined or
  /// its CUDA backend is not nccl.
  static World over(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options = {});
  /// Returns a world of CPU ranks over tcp that meet at the given store. Its keys that begin with
  /// "sherd/" belong to Sherd; one store can serve several worlds of the same ranks. The store is
  /// not used any more after the call. Collective; blocks and throws as from_environment().
  static World over(
      const c10::intrusive_ptr<c10d::Store>& store,
      int64_t rank,
      int64_t size,
      const WorldOptions& options = {});

  /// Leaves all worlds of this process. Tells the other ranks, so that operations which this rank
  /// will never join throw there and name it. With MPI it first completes the operations that this
  /// rank has started, then blocks until the other ranks leave too, at most operation_timeout (20 s
  /// after a failure), and finishes MPI, because otherwise mpirun would report a crash; over tcp it
  /// does the same, and closes the connections. (If the
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
