// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nccl_device/core.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_session.h"
#include "comm/nccl/symmetric.h"

namespace sherd {
namespace {

constexpr const char* kTag = "[comm.symmetric] ";

std::string scope_of(const Communicator& communicator) {
  return c10::str(
      kTag, "rank ", communicator.world_rank(), ", '", communicator.name(), "' (",
      communicator.rank(), " of ", communicator.size(), "): ");
}

std::string in_words(ncclResult_t result, ncclComm_t comm = nullptr) {
  return c10::str(ncclGetErrorString(result), " (", ncclGetLastError(comm), ")");
}

void check_not_capturing() {
  const auto status = c10::cuda::currentStreamCaptureStatusMayInitCtx();
  TORCH_CHECK(
      status == c10::cuda::CaptureStatus::None, kTag,
      "the current stream is being captured into a graph; allocate and register before that");
}

/// The allocation that a tensor of symmetric memory owns.
struct Block {
  void* begin;
  c10::Device device;
};

/// Frees such a block. A tensor with this deleter is known to be symmetric memory.
void free_block(void* context) noexcept {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  try {
    const c10::cuda::CUDAGuard guard(block->device);
    // Who drops a tensor need not know what its streams still hold, and unmapping waits for
    // nothing.
    if (cudaDeviceSynchronize() == cudaSuccess) ncclMemFree(block->begin);
  } catch (const std::exception&) {
    // CUDA has ended before the tensor did, and the memory with it.
  }
}

template <class Function>
Function driver_function(const char* name) {
  constexpr unsigned kDriver = 12000;  // the oldest that NCCL takes such memory from
  void* found = nullptr;
  auto status = cudaDriverEntryPointSymbolNotFound;
  C10_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &found, kDriver, cudaEnableDefault, &status));
  TORCH_CHECK(
      status == cudaDriverEntryPointSuccess, kTag, "the CUDA driver has no ", name,
      ": install a newer one");
  return reinterpret_cast<Function>(found);
}

/// Whether other ranks can map it. NCCL gives plain memory, without a word, where it may not or
/// can't use the driver's virtual memory.
bool is_mappable(void* begin) {
  const auto retain =
      driver_function<decltype(&cuMemRetainAllocationHandle)>("cuMemRetainAllocationHandle");
  const auto release = driver_function<decltype(&cuMemRelease)>("cuMemRelease");
  CUmemGenericAllocationHandle handle{};
  if (retain(&handle, begin) != CUDA_SUCCESS) return false;
  release(handle);
  return true;
}

void* allocate(int64_t bytes, c10::Device device) {
  void* begin = nullptr;
  const auto size = static_cast<size_t>(bytes);
  if (ncclMemAlloc(&begin, size) == ncclSuccess) return begin;
  c10::cuda::CUDACachingAllocator::emptyCache();  // torch may hold in reserve what is missing
  begin = nullptr;
  const auto result = ncclMemAlloc(&begin, size);
  if (result == ncclSuccess) return begin;
  static_cast<void>(cudaGetLastError());  // or the next call would report it
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, kTag, "NCCL could not allocate ", bytes, " bytes on ", device,
      ", which has ", free, " of ", total, " free: ", in_words(result));
}

/// Blocks until a non-blocking communicator knows the result of a call.
ncclResult_t await_result(ncclComm_t comm, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) return result;
  auto state = ncclInProgress;
  while (state == ncclInProgress) {
    const auto asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state == ncclInProgress) std::this_thread::yield();
  }
  return state;
}

/// NCCL 2.28 describes a window that kernels can use in device memory; where it only registers
/// locally, the window is an object on the host.
bool is_symmetric(ncclWindow_t window) {
  cudaPointerAttributes attributes{};
  C10_CUDA_CHECK(cudaPointerGetAttributes(&attributes, window));
  return attributes.type == cudaMemoryTypeDevice;
}

/// NCCL would wait for ever for a rank that stays away, and lay windows of different sizes across
/// each other. The gather has a limit of its own, and leaves the communicator with nothing to do.
void agree_on_size(Communicator& communicator, const at::Tensor& memory) {
  const auto on_device = at::TensorOptions().dtype(at::kLong).device(memory.device());
  auto mine = at::full({1}, static_cast<int64_t>(memory.nbytes()), on_device);
  auto all = at::empty({communicator.size()}, on_device);
  communicator.all_gather(all, mine).synchronize();
  const auto sizes = all.cpu();
  const auto* begin = sizes.const_data_ptr<int64_t>();
  const auto* end = begin + communicator.size();
  const auto* other = std::find_if(begin, end, [&](int64_t size) { return size != *begin; });
  TORCH_CHECK_VALUE(
      other == end, scope_of(communicator), "the ranks registered memories of different sizes: 0 ",
      *begin, " bytes, ", other - begin, " ", *other, " bytes");
}

class NcclWindow final : public Window {
 public:
  NcclWindow(std::shared_ptr<Windows> windows, int64_t id)
      : windows_(std::move(windows)), id_(id) {}
  ~NcclWindow() override {
    if (std::uncaught_exceptions() == 0) windows_->remove(id_);
  }

 private:
  std::shared_ptr<Windows> windows_;
  int64_t id_;
};

}  // namespace

at::Tensor symmetric_memory(int64_t bytes, c10::Device device) {
  TORCH_CHECK_VALUE(
      device.is_cuda(), kTag, "symmetric memory is NCCL's, for GPUs; the device is ", device,
      ": leave [memory] symmetric off");
  TORCH_CHECK_VALUE(gpu_count() > 0, kTag, "this process sees no GPU");
  TORCH_CHECK_VALUE(bytes >= 0, kTag, "there is no memory of ", bytes, " bytes");
  if (!device.has_index()) device = c10::Device(c10::kCUDA, c10::cuda::current_device());
  const c10::cuda::CUDAGuard guard(device);
  check_not_capturing();
  auto block = std::make_unique<Block>(Block{nullptr, device});
  // An empty memory takes nothing, and NCCL is asked for nothing.
  if (bytes > 0) block->begin = allocate(bytes, device);
  auto* const begin = block->begin;
  const auto memory = at::for_blob(begin, {bytes})
                          .context(block.release(), &free_block)
                          .options(at::TensorOptions().dtype(at::kByte).device(device))
                          .target_device(device)
                          .make_tensor();
  TORCH_CHECK_VALUE(
      bytes == 0 || is_mappable(begin), kTag,
      "NCCL gave memory that other ranks can't map: unset NCCL_CUMEM_ENABLE, or leave [memory] "
      "symmetric off on a driver or GPU without virtual memory management");
  return memory;
}

std::unique_ptr<Window> register_window(Communicator& communicator, const at::Tensor& memory) {
  const auto scope = scope_of(communicator);
  auto* host = dynamic_cast<HasWindows*>(&communicator);
  TORCH_CHECK_VALUE(
      host != nullptr, scope, "symmetric memory is NCCL's; the backend is ", communicator.backend(),
      ": run over nccl, or leave [memory] symmetric off");
  const bool ours = memory.defined() && memory.has_storage() &&
                    memory.storage().data_ptr().get_deleter() == &free_block;
  TORCH_CHECK_VALUE(ours, scope, "only what symmetric_memory() gave can be registered");
  TORCH_CHECK_VALUE(
      memory.nbytes() == memory.storage().nbytes(), scope, "a part of ", memory.nbytes(),
      " bytes was passed; register the whole memory of ", memory.storage().nbytes());
  TORCH_CHECK_VALUE(!host->windows()->holds(memory), scope, "the memory is already registered");
  const c10::cuda::CUDAGuard guard(memory.device());
  check_not_capturing();
  agree_on_size(communicator, memory);
  const auto id = host->windows()->add(memory, scope);
  return std::make_unique<NcclWindow>(host->windows(), id);
}

std::string symmetric_text(Communicator& communicator) {
  const auto answer = [](const auto&... words) {
    return c10::str("NCCL's symmetric kernels: ", words...);
  };
  const auto* host = dynamic_cast<HasWindows*>(&communicator);
  if (host == nullptr) return answer("no, the backend is ", communicator.backend());
  if (communicator.size() == 1) return answer("no, one rank sends nothing");
  const auto reach = host->windows()->reach();
  if (!reach) return answer("no, nothing is registered");
  if (*reach == 0) {
    return answer("no, GPUs of a host can't reach each other's memory, or NCCL_WIN_ENABLE is 0");
  }
  if (*reach == 1) return answer("no, each rank is on a host of its own");
  if (*reach < communicator.size()) {
    return answer("no, of ", communicator.size(), " ranks only ", *reach, " are on one host");
  }
  return answer("yes, all ", *reach, " ranks reach each other's memory");
}

bool Windows::holds(const at::Tensor& memory) {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.memory.is_alias_of(memory);
  });
}

int64_t Windows::add(const at::Tensor& memory, const std::string& scope) {
  const c10::cuda::CUDAGuard guard(device_);  // c10d looks its communicator up by device
  const std::lock_guard lock(mutex_);
  ncclWindow_t window = nullptr;
  if (memory.nbytes() > 0) {
    auto* comm = native_();
    TORCH_CHECK_WITH(
        DistBackendError, comm != nullptr, scope, "the communicator was aborted before");
    const auto result = await_result(
        comm,
        ncclCommWindowRegister(
            comm, memory.mutable_data_ptr(), memory.nbytes(), &window, NCCL_WIN_COLL_SYMMETRIC));
    TORCH_CHECK_WITH(
        DistBackendError, result == ncclSuccess, scope, "NCCL could not register ", memory.nbytes(),
        " bytes: ", in_words(result, comm));
    TORCH_CHECK_VALUE(
        window != nullptr, scope,
        "NCCL registered nothing: unset NCCL_WIN_ENABLE, NCCL_LOCAL_REGISTER and "
        "NCCL_P2P_USE_CUDA_MEMCPY, or leave [memory] symmetric off");
    reach_ = is_symmetric(window) ? ncclTeamLsa(comm).nRanks : 0;
  }
  entries_.push_back({next_id_, window, memory});
  return next_id_++;
}

void Windows::remove(int64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(
      entries_.begin(), entries_.end(), [&](const Entry& one) { return one.id == id; });
  if (entry == entries_.end()) return;  // the communicator was closed first
  deregister(*entry);
  entries_.erase(entry);
}

void Windows::close() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : entries_) deregister(entry);
  entries_.clear();
  native_ = nullptr;
}

std::optional<int64_t> Windows::reach() {
  const std::lock_guard lock(mutex_);
  return reach_;
}

void Windows::deregister(const Entry& entry) noexcept {
  if (entry.window == nullptr) return;
  try {
    const c10::cuda::CUDAGuard guard(device_);
    // NCCL unmaps at once what its kernels may still use, and a collective that is launched
    // meanwhile can hang.
    if (cudaDeviceSynchronize() != cudaSuccess) return;
    if (auto* comm = native_()) ncclCommWindowDeregister(comm, entry.window);
  } catch (const std::exception&) {
    // CUDA or the communicator has ended, and the window with it.
  }
}

}  // namespace sherd
