// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace sherd {

/// Moves bytes between the ranks of the world. Used by one thread at a time.
class Transport {
 public:
  /// A message under way; its memory belongs to the transport until test() says true.
  class Request {
   public:
    virtual ~Request() = default;
    /// Whether it has arrived or left. Throws if it failed, or if a message had another length than
    /// its receiver expected.
    virtual bool test() = 0;
  };

  virtual ~Transport() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Messages between two ranks with one tag arrive in order.
  virtual std::unique_ptr<Request> send(int64_t peer, int tag, const void* data, int64_t bytes) = 0;
  virtual std::unique_ptr<Request> receive(int64_t peer, int tag, void* data, int64_t bytes) = 0;
  /// A receive from whichever rank sends first. A shorter message is no error here.
  virtual std::unique_ptr<Request> receive_any(int tag, void* data, int64_t bytes) = 0;
  /// Ends it in peace, once all ranks are known to do so. Without this call the peers are left
  /// alone.
  virtual void finish() = 0;
};

/// MPI among the ranks that its launcher started. Throws, naming who is missing, if they have not
/// all arrived when the time is up, and if MPI counts other ranks than the launcher. Without MPI in
/// the build it throws with the remedy.
std::unique_ptr<Transport> mpi_transport(std::chrono::milliseconds timeout);

/// The version line of the MPI library, or that there is none.
std::string mpi_version();

/// For a process alone: it has no peers.
std::unique_ptr<Transport> lone_transport();

}  // namespace sherd
