// SPDX-License-Identifier: Apache-2.0
// Two ranks on two hosts, which are threads of this process: errors that name a rank name its host.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/engine/engine.h"
#include "comm/engine/engine_communicator.h"
#include "comm/tcp/roster.h"
#include "comm/tcp/tcp_transport.h"

namespace sherd {
namespace {

using std::chrono::milliseconds;
using Body = std::function<void(Communicator&, int socket)>;

/// Runs `body` as each of two ranks on `hosts`, and returns what rank 0 threw.
std::string error_between(const std::vector<std::string>& hosts, const Body& body) {
  int pair[2];
  TORCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  std::string error;
  const auto run = [&](int64_t rank) {
    std::vector<Descriptor> sockets(2);
    sockets[static_cast<size_t>(1 - rank)] = Descriptor(pair[rank]);
    constexpr milliseconds kLimit(400);
    try {
      const auto engine =
          std::make_shared<Engine>(tcp_transport(rank, std::move(sockets), hosts), kLimit);
      body(*engine_communicator(engine, kLimit), pair[rank]);
    } catch (const c10::Error& caught) {
      if (rank == 0) error = caught.what_without_backtrace();
    }
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  return error;
}

void all_reduce(Communicator& communicator, int64_t count = 100) {
  communicator.all_reduce(at::ones({count}), Reduction::sum()).wait();
}

void breaks_off(Communicator& communicator, int socket) {
  if (communicator.rank() == 1) shutdown(socket, SHUT_RDWR);
  all_reduce(communicator);
}
void leaves(Communicator& communicator, int) {
  if (communicator.rank() == 0) all_reduce(communicator);
}
void stays_away(Communicator& communicator, int) {
  if (communicator.rank() == 1) std::this_thread::sleep_for(milliseconds(900));
  all_reduce(communicator);
}
void passes_another_size(Communicator& communicator, int) {
  all_reduce(communicator, communicator.rank() == 1 ? 200 : 100);
}

TEST(RankHosts, AreNamedInErrorsThatNameARank) {
  for (const auto& [body, words, hosts] :
       {std::tuple<Body, const char*, const char*>{
            breaks_off, "rank 1 is gone: its process has ended", " (rank 1 runs on beta)"},
        {leaves, "rank 1 has left: its process closed the world",
         " (rank 0 runs on alpha, rank 1 on beta)"},
        {stays_away, "no word from rank 1", " (rank 1 runs on beta)"},
        {passes_another_size, "rank 1 sent", " (rank 1 runs on beta)"}}) {
    const auto error = error_between({"alpha", "beta"}, body);
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_TRUE(error.ends_with(hosts)) << error;
  }
}

TEST(RankHosts, AreNotNamedOnASingleOne) {
  const auto error = error_between({}, leaves);
  EXPECT_TRUE(error.ends_with("All ranks must make the same calls")) << error;
}

TEST(RankHosts, ComeFromTheRoster) {
  Roster roster;
  roster.ranks = {{{}, "alpha/boot1"}, {{}, "beta/boot2"}};
  EXPECT_EQ(hosts_of(roster), (std::vector<std::string>{"alpha", "beta"}));
  roster.ranks = {{{}, "alpha/boot1"}, {{}, "alpha/boot1"}};
  EXPECT_TRUE(hosts_of(roster).empty());
}

}  // namespace
}  // namespace sherd
