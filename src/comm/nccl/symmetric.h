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

// Memory that NCCL knows on all ranks. Where the ranks reach each other's GPUs by loads and stores
// (NVLink), NCCL may then gather and reduce with kernels that need no staging and fewer CTAs: for
// gathers, and for sums of floating point up to 32 bits, whose input and output both lie in such
// memory; elsewhere it is registered as any user's buffer. A sum is added up in another order then,
// so its last bits may differ. `NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING` shows which kernel ran.

/// What symmetric_memory(wanted) takes of the device: NCCL gives whole pages of 2 MiB.
constexpr int64_t symmetric_bytes(int64_t wanted) {
  constexpr int64_t kPage = int64_t{2} << 20;
  return (wanted + kPage - 1) / kPage * kPage;
}

/// Memory of NCCL's own allocator, as a tensor of that many bytes without values. It is none of
/// torch's allocator and not in its statistics. It is given back with the last reference, which
/// makes the host wait for all work on the device; neither may happen while a graph is captured.
/// Throws c10::ValueError where device, build or NCCL's settings can't have it, and
/// c10::OutOfMemoryError.
at::Tensor symmetric_memory(int64_t bytes, c10::Device device);

/// A memory's registration with a communicator. Its end takes that back, on this rank alone, after
/// waiting for all work on the device; graphs that use the memory must not be replayed any more.
/// It keeps the memory alive. A communicator that closes first takes it back itself, and so it does
/// if the window ends while an exception is on its way: peers may then never join what is under
/// way.
class Window {
 public:
  Window() = default;
  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
};

/// Registers a whole symmetric_memory(), once per communicator. All of the communicator's ranks
/// call it at the same point, with memories of the same size, and nothing is being captured.
/// Blocks.
///
/// From then on a collective that one rank runs on parts of the memory all must run on parts of it;
/// a gather's output and a reduction's input lie at the same offset on all ranks.
///
/// Throws c10::ValueError if the backend is not nccl, the memory is another, or the ranks' sizes
/// differ: on all ranks then, before NCCL is asked. If NCCL refuses on one rank alone, the others
/// wait for it until that one ends.
std::unique_ptr<Window> register_window(Communicator& communicator, const at::Tensor& memory);

/// Whether NCCL can use its symmetric kernels there, in words with the reason. To be asked after
/// register_window().
std::string symmetric_text(Communicator& communicator);

/// The windows of one communicator over NCCL. It shares them with their handles, so that either may
/// end first.
class Windows {
 public:
  /// NCCL's communicator; null once it was aborted, which frees it and all that it had registered.
  using Native = std::function<ncclComm*()>;

  Windows(c10::Device device, Native native) : device_(device), native_(std::move(native)) {}

  bool holds(const at::Tensor& memory);
  /// Collective. Errors begin with `scope`.
  int64_t add(const at::Tensor& memory, const std::string& scope);
  void remove(int64_t id) noexcept;
  /// Takes all back. To be called while the communicator's watch still limits how long work may
  /// take, unless the communicator is going to be aborted.
  void close() noexcept;
  /// How many ranks of the communicator reach each other's memory, 0 if NCCL only registers it
  /// locally; nothing before the first window.
  std::optional<int64_t> reach();

 private:
  struct Entry {
    int64_t id;
    ncclWindow_vidmem* window;
    at::Tensor memory;
  };
  void take_back(const Entry& entry) noexcept;

  c10::Device device_;
  Native native_;
  std::mutex mutex_;
  std::list<Entry> entries_;
  int64_t next_id_ = 0;
  std::optional<int64_t> reach_;
};

/// What a communicator over NCCL also is.
class HasWindows {
 public:
  virtual ~HasWindows() = default;
  virtual const std::shared_ptr<Windows>& windows() const = 0;
};

}  // namespace sherd
