// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace sherd {

/// Point-to-point messages of bytes between the ranks of the world. Used by one thread at a time.
/// All functions but finish() return at once.
class Transport {
 public:
  /// A message under way. Its memory must not be freed or written, nor that of a receive read,
  /// until test() has returned true. Destroying it earlier cancels it.
  class Request {
   public:
    virtual ~Request() = default;
    /// Returns whether the message has been received, or for a send whether its memory may be used
    /// again; not to be called after that. Throws if it failed, or if it had another length than
    /// its receiver expected.
    virtual bool test() = 0;
  };

  virtual ~Transport() = default;
  virtual std::string name() const = 0;  ///< the backend's name, as in the scope of errors
  virtual int64_t rank() const = 0;      ///< this rank's index
  virtual int64_t size() const = 0;      ///< number of ranks
  /// Returns the name of the host that a rank runs on. Default: empty, where all ranks run on one.
  virtual std::string host_of(int64_t /*rank*/) const { return {}; }
  /// Starts a send of at most 2^31 - 1 bytes. Messages between two ranks with one tag arrive in the
  /// order in which they were sent.
  virtual std::unique_ptr<Request> send(int64_t peer, int tag, const void* data, int64_t bytes) = 0;
  /// Starts a receive of exactly `bytes` bytes.
  virtual std::unique_ptr<Request> receive(int64_t peer, int tag, void* data, int64_t bytes) = 0;
  /// Starts a receive of at most `bytes` bytes from any rank.
  virtual std::unique_ptr<Request> receive_any(int tag, void* data, int64_t bytes) = 0;
  /// Moves the messages under way. To be called before requests are tested. Default: nothing, for a
  /// transport whose requests do it in test().
  virtual void progress() {}
  /// Returns the ranks whose connection is lost, with the reason, as far as progress() has noticed.
  /// Sends to them count as done, receives from them never are. Default: none, for a transport
  /// whose launcher ends all ranks together.
  virtual std::map<int64_t, std::string> lost() const { return {}; }
  /// Closes the transport on all ranks together. Collective; may block without a limit. Destroying
  /// a transport without it leaves the other ranks alone.
  virtual void finish() = 0;
};

/// Returns the transport of a process alone, which has no peers. `name` is its backend's.
std::unique_ptr<Transport> lone_transport(std::string name);

}  // namespace sherd
