// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "comm/run_token.h"
#include "comm/tcp/address.h"
#include "comm/time_text.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;

std::string arrival(int64_t rank) {
  return c10::str("arrived/", rank);
}
constexpr const char* kSize = "size";
constexpr const char* kDispute = "dispute";
constexpr const char* kVerdict = "verdict";
constexpr const char* kMeeting = "meeting";  // see hear_refusal()
constexpr auto kPause = std::chrono::milliseconds(20);

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string text(const std::vector<uint8_t>& data) {
  return {data.begin(), data.end()};
}

std::string listed(const std::vector<int64_t>& ranks) {
  return c10::str(ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks));
}

/// What a rank writes when it arrives, or rank 0 with the size.
std::string proof_of_rank(int64_t rank) {
  return token_proof(arrival(rank));
}

std::string foreign(int64_t rank) {
  return c10::str(
      "rank ", rank, " does not prove this run's SHERD_TOKEN: it belongs to another run, or its ",
      "launcher has not handed the variable on (mpirun -x SHERD_TOKEN)");
}

/// On rank 0: blocks until all ranks have arrived, and returns an empty text; or returns what is
/// wrong.
std::string await_arrivals(c10d::Store& store, const Launch& launch, Clock::time_point deadline) {
  while (true) {
    if (store.check({kDispute})) return text(store.get(kDispute));
    std::vector<int64_t> missing;
    for (int64_t rank = 1; rank < launch.size; ++rank) {
      if (!store.check({arrival(rank)})) {
        missing.push_back(rank);
      } else if (!equal_in_constant_time(text(store.get(arrival(rank))), proof_of_rank(rank))) {
        return foreign(rank);
      }
    }
    if (missing.empty()) return "";
    if (Clock::now() > deadline) {
      return c10::str(listed(missing), missing.size() == 1 ? " has" : " have", " not arrived");
    }
    std::this_thread::sleep_for(kPause);
  }
}

/// On rank 0: publishes the size, waits for the others, and tells them what is wrong, if anything.
std::string arrive_as_first(c10d::Store& store, const Launch& launch, Clock::time_point deadline) {
  store.set(kSize, bytes(c10::str(launch.size, " ", proof_of_rank(0))));
  const auto verdict = await_arrivals(store, launch, deadline);
  store.set(kVerdict, bytes(verdict));
  if (verdict.empty()) return verdict;
  int64_t arrived = 0;
  for (int64_t rank = 1; rank < launch.size; ++rank)
    arrived += store.check({arrival(rank)}) ? 1 : 0;
  hear_refusal(store, kMeeting, 0, arrived);
  return verdict;
}

/// On other ranks: compares the size, marks this rank as arrived, and returns what rank 0 found.
std::string arrive_as_other(
    c10d::Store& store, const Launch& launch, std::chrono::milliseconds timeout) {
  try {
    store.wait({kSize}, timeout);
    const auto told = text(store.get(kSize));
    const auto size = told.substr(0, told.find(' '));
    if (!equal_in_constant_time(told, c10::str(size, " ", proof_of_rank(0)))) return foreign(0);
    if (size != std::to_string(launch.size)) {
      const auto dispute = c10::str(
          "rank ", launch.rank, " says the world has ", launch.size, " ranks, rank 0 says ", size,
          ": start all ranks with one size");
      store.set(kDispute, bytes(dispute));
      return dispute;
    }
    store.set(arrival(launch.rank), bytes(proof_of_rank(launch.rank)));
    // Longer than rank 0's own limit, so that its verdict, which names the missing ranks, comes
    // first.
    store.wait({kVerdict}, timeout + std::chrono::seconds(5));
    const auto verdict = text(store.get(kVerdict));
    if (!verdict.empty()) hear_refusal(store, kMeeting, launch.rank, 0);
    return verdict;
  } catch (const std::exception&) {
    return "rank 0 has not arrived, or left again";
  }
}

/// Has the store listen at that host's address alone, if it is one of this machine.
void serve_at(const std::string& host, bool one_machine, c10d::TCPStoreOptions& options) {
  auto listener = bind_to_host(host, options.port, one_machine);
  if (!listener) return;
  options.port = static_cast<uint16_t>(listener->second.port());
  options.masterListenFd = listener->first.release();  // the store's now
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(
    const Launch& launch, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = launch.rank == 0 && !launch.launcher_has_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) serve_at(launch.host, launch.size == launch.local_size, options);
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.host, options);
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(
        DistBackendError, false, "[comm.world] rank ", launch.rank, " of ", launch.size,
        ", start: ",
        options.isServer ? "can't serve the store at "
                         : "rank 0 has not arrived: no store answers at ",
        launch.host, ":", launch.port, "; MASTER_ADDR and MASTER_PORT say where rank 0 is (",
        error.what(), ")");
  }
}

void await_all_ranks(c10d::Store& store, const Launch& launch, std::chrono::milliseconds timeout) {
  const auto wrong = launch.rank == 0 ? arrive_as_first(store, launch, Clock::now() + timeout)
                                      : arrive_as_other(store, launch, timeout);
  TORCH_CHECK_WITH(
      DistBackendError, wrong.empty(), "[comm.world] rank ", launch.rank, " of ", launch.size,
      ", start: ", wrong, " (the limit is ", in_seconds(timeout), ")");
}

void hear_refusal(c10d::Store& store, const std::string& what, int64_t rank, int64_t others) {
  const auto heard = what + "/heard";
  if (rank != 0) {
    store.add(heard, 1);
    return;
  }
  const auto patience = Clock::now() + std::chrono::seconds(2);
  while (store.add(heard, 0) < others && Clock::now() < patience)
    std::this_thread::sleep_for(kPause);
}

c10::intrusive_ptr<c10d::Store> meet_at_launchers_store(
    const Launch& launch, std::chrono::milliseconds timeout) {
  static std::mutex mutex;
  static int64_t worlds = 0;
  // Never closed: its server may have to answer other ranks until the process ends.
  static auto& store = *new c10::intrusive_ptr<c10d::Store>();
  const std::lock_guard lock(mutex);
  if (!store.defined()) store = open_store(launch, timeout);
  auto keys = c10::make_intrusive<c10d::PrefixStore>(
      c10::str("sherd/", launch.attempt, "/", worlds++), store);
  await_all_ranks(*keys, launch, timeout);
  return keys;
}

c10::intrusive_ptr<c10d::Store> lone_store() {
  return c10::make_intrusive<c10d::HashStore>();
}

c10::intrusive_ptr<c10d::Store> shared_store(
    Communicator& communicator, std::chrono::milliseconds timeout) {
  struct Place {
    std::array<char, 256> host{};
    int64_t port = 0;
  } address;
  const auto share = [&] {
    auto message = at::zeros({static_cast<int64_t>(sizeof(Place))}, at::kByte);
    std::memcpy(message.mutable_data_ptr(), &address, sizeof(Place));
    communicator.broadcast(message, 0).wait();
    std::memcpy(&address, message.const_data_ptr(), sizeof(Place));
  };
  std::array<char, 256> here{};
  gethostname(here.data(), here.size() - 1);
  address.host = here;
  share();
  auto elsewhere = at::full({1}, std::strcmp(here.data(), address.host.data()) == 0 ? 0 : 1);
  communicator.all_reduce(elsewhere, Reduction::sum()).wait();
  const bool one_machine = elsewhere.item<int64_t>() == 0;
  const std::string host = one_machine ? "localhost" : address.host.data();
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  options.timeout = timeout;
  c10::intrusive_ptr<c10d::Store> store;
  if (communicator.rank() == 0) {
    options.isServer = true;
    options.port = 0;  // any free one
    serve_at(host, one_machine, options);
    auto served = c10::make_intrusive<c10d::TCPStore>(host, options);
    address.port = served->getPort();
    store = std::move(served);
  }
  share();
  if (communicator.rank() != 0) {
    options.port = static_cast<uint16_t>(address.port);
    store = c10::make_intrusive<c10d::TCPStore>(host, options);
  }
  return store;
}

}  // namespace sherd
