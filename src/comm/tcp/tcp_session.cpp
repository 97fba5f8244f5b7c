// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/tcp_session.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "comm/engine/engine.h"
#include "comm/engine/engine_communicator.h"
#include "comm/engine/short_turns.h"
#include "comm/engine/transport.h"
#include "comm/open_connections.h"
#include "comm/rendezvous.h"
#include "comm/tcp/address.h"
#include "comm/tcp/connect_ranks.h"
#include "comm/tcp/roster.h"
#include "comm/tcp/tcp_transport.h"

namespace sherd {
namespace {

std::string chosen_interface(const WorldOptions& options) {
  if (!options.interface.empty()) return options.interface;
  const char* given = std::getenv("SHERD_INTERFACE");
  return given == nullptr ? "" : given;
}

/// Returns the host of the store that all ranks reach; this one, if the store has none (a file).
std::string host_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  const auto inner = prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
  const auto* served = dynamic_cast<const c10d::TCPStore*>(inner.get());
  return served == nullptr ? "localhost" : served->getHost();
}

/// Counts the ranks of this machine, whether the launcher says how many they are or not.
void set_local_ranks(Session::Location& location, const Roster& roster, int64_t rank) {
  location.local_rank = 0;
  location.local_size = 0;
  const auto& here = roster.ranks[static_cast<size_t>(rank)].machine;
  for (int64_t each = 0; each < std::ssize(roster.ranks); ++each) {
    if (roster.ranks[static_cast<size_t>(each)].machine != here) continue;
    if (each < rank) ++location.local_rank;
    ++location.local_size;
  }
}

/// Connects ranks that have all arrived at the store. Its keys serve this world alone.
std::unique_ptr<Transport> connect_over(
    const c10::intrusive_ptr<c10d::Store>& store,
    const Launch& launch,
    const WorldOptions& options,
    Session::Location& location) {
  const auto deadline = std::chrono::steady_clock::now() + options.start_timeout;
  Roster::Entry own{{}, this_machine()};
  Descriptor listener;
  std::string refusal;
  try {
    refusal = too_few_files_for(launch.size);
    own.address = own_address(chosen_interface(options), host_of(store));
    if (refusal.empty()) listener = listen_at(own.address);
  } catch (const c10::Error& error) {
    refusal = error.what_without_backtrace();
  } catch (const std::exception& error) {
    refusal = error.what();  // of /proc
  }
  const auto roster =
      exchange_roster(*store, launch.rank, launch.size, own, refusal, options.start_timeout);
  set_local_ranks(location, roster, launch.rank);
  return tcp_transport(
      launch.rank, connect_ranks(listener, roster, launch.rank, deadline), hosts_of(roster));
}

std::unique_ptr<Session> open_over(
    const c10::intrusive_ptr<c10d::Store>& store,
    const Launch& launch,
    const WorldOptions& options) {
  Session::Location location{launch.launcher, launch.local_rank, launch.local_size, c10::kCPU};
  ask_for_short_turns();
  auto transport =
      launch.size == 1 ? lone_transport("tcp") : connect_over(store, launch, options, location);
  auto engine = std::make_shared<Engine>(std::move(transport), options.operation_timeout);
  leave_at_exit(engine);
  // The communicators keep the engine alive, so that it ends with the last of them.
  return std::make_unique<Session>(
      location, engine_communicator(std::move(engine), options.operation_timeout));
}

}  // namespace

std::unique_ptr<Session> open_tcp(const Launch& launch, const WorldOptions& options) {
  if (launch.size == 1) return open_over({}, launch, options);
  TORCH_CHECK_VALUE(
      !launch.host.empty(), "[comm.world] the backend is tcp, whose ranks meet at a store, but ",
      to_text(launch.launcher), " serves none: use the backend mpi, or start the ranks with ",
      "torchrun");
  return open_over(meet_at_launchers_store(launch, options.start_timeout), launch, options);
}

std::unique_ptr<Session> open_tcp_over(
    const c10::intrusive_ptr<c10d::Store>& store,
    int64_t rank,
    int64_t size,
    const WorldOptions& options) {
  TORCH_CHECK_VALUE(store.defined(), "[comm.world] the store is undefined");
  TORCH_CHECK_VALUE(
      size >= 1 && rank >= 0 && rank < size, "[comm.world] rank ", rank, " of a world of ", size,
      "; ranks count from 0 to the size less one");
  Launch launch;
  launch.launcher = Launcher::caller;
  launch.rank = rank;
  launch.size = size;
  // Each rank counts its worlds at this store: it may have others, with other ranks.
  const auto number = store->add(c10::str("sherd/worlds of rank ", rank), 1);
  auto keys = c10::make_intrusive<c10d::PrefixStore>(c10::str("sherd/over/", number), store);
  await_all_ranks(*keys, launch, options.start_timeout);
  return open_over(keys, launch, options);
}

}  // namespace sherd
