// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "sherd/comm/communicator.h"

struct ncclComm;
struct ncclWindow_vidmem;

namespace sherd {

// Note [Symmetric memory]
// Symmetric memory is registered with NCCL on all ranks of a communicator. Where the ranks reach
// each other's GPUs by loads and stores (NVLink), NCCL then has kernels that need no staging and
// fewer CTAs: for all-gathers, and for sums of floating point up to 32 bits, if input and output
// both lie in such memory. Elsewhere it is registered like any user's buffer. These kernels add in
// another order, so the last bits of a sum may differ. `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING`
// shows which kernel ran.

/// Returns how many bytes of the device symmetric_memory(wanted) takes: NCCL gives whole pages of
/// 2 MiB.
constexpr int64_t symmetric_bytes(int64_t wanted) {
  constexpr int64_t kPage = int64_t{2} << 20;
  return (wanted + kPage - 1) / kPage * kPage;
}

/// Allocates memory from NCCL and returns it as an uninitialised tensor of bytes. Torch's allocator
/// and its statistics know nothing of it. The last reference to it frees it, after blocking the
/// host until all work on the device is done. Neither may happen while a graph is captured. Throws
/// c10::ValueError if device, build or NCCL's settings do not allow it, and c10::OutOfMemoryError.
at::Tensor symmetric_memory(int64_t bytes, c10::Device device);

/// The registration of a memory with a communicator. Keeps the memory alive. Its destructor ends
/// the registration, on this rank alone, after blocking the host until all work on the device is
/// done; graphs that use the memory must not be replayed after that. If the communicator closes
/// first, or if the window is destroyed while an exception is under way, the communicator ends the
/// registration when it closes: after an exception, other ranks may never join the work on the
/// device.
class Window {
 public:
  Window() = default;
  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
};

/// Registers the whole of a symmetric_memory() with a communicator, once. Collective; blocks. The
/// memories of all ranks have the same size, and no graph is being captured.
///
/// From then on, if one rank runs a collective on parts of the memory, all ranks must; the output
/// of an all-gather and the input of a reduction must be at the same offset on all ranks.
///
/// Throws c10::ValueError if the backend is not nccl or `memory` did not come from
/// symmetric_memory(); also if the ranks' sizes differ, on all ranks and before NCCL is called. If
/// NCCL fails on one rank alone, the others block until that rank ends.
std::unique_ptr<Window> register_window(Communicator& communicator, const at::Tensor& memory);

/// Returns a sentence that says whether NCCL can use its symmetric kernels on this communicator,
/// and why not. To be called after register_window().
std::string symmetric_text(Communicator& communicator);

/// The windows of one nccl communicator, shared with their handles, so that either may end first.
/// Any thread.
class Windows {
 public:
  /// A function that returns NCCL's communicator, or null once it was aborted, which frees it and
  /// all that it had registered.
  using Native = std::function<ncclComm*()>;

  Windows(c10::Device device, Native native) : device_(device), native_(std::move(native)) {}

  /// Returns whether a memory is registered.
  bool holds(const at::Tensor& memory);
  /// Registers a memory and returns the id of its window. Collective; blocks. Errors begin with
  /// `scope`.
  int64_t add(const at::Tensor& memory, const std::string& scope);
  /// Ends one registration. Blocks until all work on the device is done.
  void remove(int64_t id) noexcept;
  /// Ends all registrations. Blocks as remove() does: to be called while the communicator's watch
  /// still limits how long work may take, unless the communicator is going to be aborted.
  void close() noexcept;
  /// Returns how many ranks of the communicator reach each other's memory: 0 if NCCL only registers
  /// it locally, no value before the first window.
  std::optional<int64_t> reach();

 private:
  struct Entry {
    int64_t id;
    ncclWindow_vidmem* window;
    at::Tensor memory;
  };
  void deregister(const Entry& entry) noexcept;

  c10::Device device_;
  Native native_;
  std::mutex mutex_;
  std::list<Entry> entries_;
  int64_t next_id_ = 0;
  std::optional<int64_t> reach_;
};

/// An interface that an nccl communicator also implements.
class HasWindows {
 public:
  virtual ~HasWindows() = default;
  virtual const std::shared_ptr<Windows>& windows() const = 0;
};

}  // namespace sherd
