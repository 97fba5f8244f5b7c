// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_group.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/util/StringUtil.h>
#include <nccl.h>

#include <cstdlib>
#include <exception>
#include <thread>

namespace sherd {
namespace {

/// How long a peer whose connection broke may take to write why.
constexpr auto kPeersWordTime = std::chrono::seconds(3);

}  // namespace

void disable_c10d_watchdog() {
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
  // After a peer's failure its thread sleeps for four times this long while records are written,
  // whether there are any or not (a minute by default), and closing a group waits for that thread.
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
  setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1", /*overwrite=*/0);
  // Peers connect when a communicator is made, not in its first collective: that call would block
  // the host, with no limit, if a rank stayed away.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  // A warning that sends and receives share the communicator, which Communicator::send documents.
  setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false", /*overwrite=*/0);
}

c10::intrusive_ptr<NcclGroup::Options> group_options(
    const WorldOptions& options, const std::string& name) {
  auto result = NcclGroup::Options::create(options.high_priority_stream);
  result->timeout = std::chrono::hours(24 * 365);  // the limit is ours to keep: see StreamWatch
  result->group_name = name;
  if (options.max_ctas > 0) result->config.maxCTAs = options.max_ctas;
  return result;
}

std::string AbortableGroup::failure(std::chrono::milliseconds open_for) {
  if (aborted_) return "aborted before";
  // c10d finds its communicator by the calling thread's device; the watch's own has none yet.
  const c10::cuda::CUDAGuard guard(device_);
  // c10d learns of such errors too, but only logs them.
  auto* comm = reinterpret_cast<ncclComm_t>(group_->getCommPtr());
  ncclResult_t state = ncclSuccess;
  const auto asked = ncclCommGetAsyncError(comm, &state);
  if (asked != ncclSuccess) state = asked;
  if (state == ncclSuccess || state == ncclInProgress) {
    // Work that is enqueued ahead is open for a while, too: ask only about what takes long.
    const bool asks = peers_.departures && open_for > Departures::kPause;
    return asks ? peers_.departures->reason(peers_.ranks) : "";
  }
  const auto text = c10::str(ncclGetErrorString(state), " (", ncclGetLastError(comm), ")");
  // NCCL sees a connection break; the peer may be about to say why.
  std::string reason;
  const auto until = std::chrono::steady_clock::now() + kPeersWordTime;
  while (peers_.departures && reason.empty() && std::chrono::steady_clock::now() < until) {
    reason = peers_.departures->reason(peers_.ranks, /*now=*/true);
    if (reason.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return reason.empty() ? text : c10::str(reason, "; NCCL says: ", text);
}

void AbortableGroup::abort() {
  if (aborted_.exchange(true)) return;
  group_->setTimeout(kClosing);
  try {
    group_->abort();
  } catch (const std::exception&) {
    // The error that led to the abort is the one to report.
  }
}

}  // namespace sherd
