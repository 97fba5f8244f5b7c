// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "sherd/comm/communicator.h"
#include "sherd/comm/world.h"

namespace sherd {

/// A backend as one rank has opened it: everything that a World knows. Every `open_*` function of a
/// backend returns one; the last World handle destroys it.
///
/// A backend provides the communicator among all ranks, from which rank and size follow too. It
/// derives from Session only if it must do something of its own before or after the communicators
/// close; mpi and emulated need not. A derived class does it in its destructor, which
/// - does not throw, and blocks for a limited time only;
/// - tells the other ranks first if an exception is ending this one (std::uncaught_exceptions()),
///   because what is under way will then never be completed;
/// - calls close_communicators(), which without an exception completes what is under way;
/// - gives back what the communicators used.
/// Communicators that a caller still holds may outlive the session. What they need for operations
/// that throw instead of crashing, they keep alive themselves.
///
/// A connection whose end other ranks, or a launcher, wait for is registered with leave_at_exit(),
/// so that World::close() and std::exit() reach it.
class Session {
 public:
  /// The place where a rank runs.
  struct Location {
    Launcher launcher = Launcher::alone;  ///< program that started the rank
    int64_t local_rank = 0;               ///< index among the ranks of this machine
    int64_t local_size = 1;               ///< number of ranks on this machine
    c10::Device device = c10::kCPU;       ///< device of its tensors, with an index if CUDA
  };

  /// `communicator` is the one among all ranks. Its name is "world".
  Session(Location location, std::shared_ptr<Communicator> communicator);
  virtual ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Location& location() const { return location_; }
  /// Returns the communicator among all ranks.
  Communicator& communicator() const { return *communicator_; }
  /// Returns another communicator among all ranks, one for each purpose. The first call for a
  /// purpose is collective and blocks; later ones return the same one. One thread at a time.
  Communicator& communicator(const std::string& purpose);

 protected:
  /// Drops all communicators, those for a purpose first. communicator() must not be called any
  /// more.
  void close_communicators();

 private:
  Location location_;
  std::shared_ptr<Communicator> communicator_;
  std::map<std::string, std::shared_ptr<Communicator>> for_purpose_;
};

}  // namespace sherd
