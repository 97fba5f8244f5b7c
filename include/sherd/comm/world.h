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
#include "sherd/comm/emulation.h"
#include "sherd/export.h"

namespace c10d {
class ProcessGroup;
}

namespace sherd {

/// Who started the ranks.
enum class Launcher : uint8_t { alone, mpirun, torchrun, srun, emulated, caller };
SHERD_API const char* to_text(Launcher launcher);

/// What moves the tensors: mpi between CPU ranks, nccl between GPUs.
enum class Backend : uint8_t { mpi, nccl };

struct WorldOptions {
  /// Default: nccl where this build and this machine have CUDA, else mpi.
  std::optional<Backend> backend{};
  /// How long to wait for all ranks to arrive.
  std::chrono::milliseconds start_timeout{60'000};
  /// How long an operation may take; then it is an error that names the operation and, over mpi,
  /// the ranks it waited for.
  std::chrono::milliseconds operation_timeout{600'000};
  /// nccl: the priority of the stream of operations that are given none.
  bool high_priority_stream = true;
  /// nccl: the most CTAs (thread blocks) that a collective may take; 0 leaves it to NCCL.
  int max_ctas = 0;
};

/// All ranks of a run and this one's place among them. A cheap handle; the last one closes the
/// world.
class SHERD_API World {
 public:
  /// The world that mpirun, torchrun or srun started this process in, or a world of one. Blocks
  /// until all ranks have arrived; throws on every rank that did, naming who is missing, when the
  /// time is up, and naming both sides when ranks disagree on the world's size.
  static World from_environment(const WorldOptions& options = {});
  /// One rank of a world that isn't there; see Emulation.
  static World emulated(const Emulation& emulation);
  /// Over a process group that the caller already has, with an nccl backend, on the device it is
  /// bound to (else the current one). Closing the group stays the caller's; if an operation fails
  /// or takes too long, it is aborted. Its local ranks are those of the machine's GPUs.
  static World over(
      const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WorldOptions& options = {});

  /// Ends this process's part in all its worlds. Tells the other ranks that this one leaves, so
  /// that operations which it will never join end there with an error that names it; waits until
  /// the other ranks leave as well, at most operation_timeout (20 s after a failure); and finishes
  /// MPI, without which mpirun takes the process for broken. Operations after it throw. The end of
  /// the last World does the same, and so does std::exit() while one is alive. Call it where worlds
  /// may outlive what runs in them: at the end of main, and after an error was reported. Any
  /// thread, any number of times; does not throw. Emulated worlds and process groups of the caller
  /// are left alone.
  static void close() noexcept;

  int64_t rank() const { return communicator().rank(); }
  int64_t size() const { return communicator().size(); }
  int64_t local_rank() const;
  int64_t local_size() const;
  Launcher launcher() const;
  /// Where this rank's tensors live.
  c10::Device device() const;
  /// Among all ranks.
  Communicator& communicator() const;
  /// The one for a purpose: opened when first asked for (collective), then shared.
  Communicator& communicator(const std::string& purpose) const;

 private:
  struct State;
  explicit World(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace sherd
