// SPDX-License-Identifier: Apache-2.0
// Ranks as threads: the store does not care.
#include "comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "comm/departures.h"
#include "comm/run_token.h"
#include "comm/tcp/address.h"
#include "comm/tcp/roster.h"

namespace sherd {
namespace {

using std::chrono::milliseconds;

int free_port() {
  const int handle = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(handle, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  socklen_t length = sizeof(address);
  getsockname(handle, reinterpret_cast<sockaddr*>(&address), &length);
  close(handle);
  return ntohs(address.sin_port);
}

struct Rank {
  int64_t rank;
  int64_t size;
};

/// What each rank says: "" when it met the others.
std::vector<std::string> meet_all(const std::vector<Rank>& ranks, milliseconds timeout) {
  const int port = free_port();
  std::vector<std::string> said(ranks.size());
  std::vector<c10::intrusive_ptr<c10d::Store>> stores(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      Launch launch;
      launch.launcher = Launcher::torchrun;
      launch.rank = ranks[i].rank;
      launch.size = ranks[i].size;
      launch.host = "127.0.0.1";
      launch.port = port;
      try {
        stores[i] = open_store(launch, timeout);
        await_all_ranks(*stores[i], launch, timeout);
      } catch (const c10::Error& error) {
        said[i] = error.what_without_backtrace();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return said;
}

TEST(RendezvousTest, LetsAllRanksGoWhenAllHaveArrived) {
  for (const auto& text : meet_all({{0, 3}, {1, 3}, {2, 3}}, milliseconds(10'000)))
    EXPECT_EQ(text, "");
}

TEST(RendezvousTest, NamesTheMissingOnEveryRankThatCame) {
  const auto begin = std::chrono::steady_clock::now();
  const auto said = meet_all({{0, 4}, {2, 4}}, milliseconds(1000));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  for (const auto& text : said)
    EXPECT_NE(text.find("ranks 1, 3 have not arrived"), std::string::npos) << text;
}

TEST(RendezvousTest, NamesBothSizesWhenRanksDisagree) {
  const auto said = meet_all({{0, 3}, {1, 3}, {2, 4}}, milliseconds(10'000));
  for (const auto& text : said) {
    EXPECT_NE(text.find("rank 2 says the world has 4 ranks, rank 0 says 3"), std::string::npos)
        << text;
  }
}

TEST(RendezvousTest, SaysThatRankZeroIsMissing) {
  for (const auto& text : meet_all({{1, 3}, {2, 3}}, milliseconds(1500))) {
    EXPECT_NE(text.find("rank 0 has not arrived"), std::string::npos) << text;
  }
}

TEST(RendezvousTest, ARankWithoutTheRunsTokenIsNamedOnAll) {
  // RFC 2202, the second and the sixth test of HMAC-SHA1.
  EXPECT_EQ(
      token_proof("what do ya want for nothing?", "Jefe"),
      "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
  EXPECT_EQ(
      token_proof(
          "Test Using Larger Than Block-Size Key - Hash Key First", std::string(80, '\xaa')),
      "aa4ae5e15272d00e95705637ce8a3b55ed402112");
  EXPECT_NE(token_proof("arrived/1"), token_proof("arrived/1", "another"));
  EXPECT_TRUE(equal_in_constant_time("one", "one"));
  EXPECT_FALSE(equal_in_constant_time("one", "two") || equal_in_constant_time("on", "one"));

  const int port = free_port();
  const auto launch_of = [&](int64_t rank) {
    return Launch{
        .launcher = Launcher::torchrun, .rank = rank, .size = 2, .host = "127.0.0.1", .port = port};
  };
  // A stranger in the place of rank 1, who read from the store what an earlier rank wrote there.
  const auto store = open_store(launch_of(0), milliseconds(10'000));
  const auto text = token_proof("arrived/1", "of another run");
  store->set("arrived/1", std::vector<uint8_t>(text.begin(), text.end()));
  std::string said;
  try {
    await_all_ranks(*store, launch_of(0), milliseconds(10'000));
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
  }
  EXPECT_NE(said.find("rank 1 does not prove this run's SHERD_TOKEN"), std::string::npos) << said;
}

/// Returns whether something listens at the port.
bool listens(const std::string& address, int port) {
  const auto to = parse_address(address, port);
  const Descriptor probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(probe.number(), to.get(), to.length) == 0;
}

TEST(RendezvousTest, TheStoreListensAtTheAddressThatWasToldAlone) {
  for (const char* host : {"127.0.0.1", "localhost", "127.0.0.7"}) {
    const Launch launch{
        .launcher = Launcher::torchrun, .size = 2, .host = host, .port = free_port()};
    const auto store = open_store(launch, milliseconds(10'000));
    const std::string own = std::string(host) == "localhost" ? "127.0.0.1" : host;
    EXPECT_TRUE(listens(own, launch.port));
    EXPECT_FALSE(listens("127.0.0.9", launch.port)) << host;
  }
  EXPECT_FALSE(bind_to_host("192.0.2.1", 0, true)) << "an address of documents, of no machine";
}

TEST(RendezvousTest, AStoreThatEndsWithRankZeroIsThereUntilARefusalWasHeard) {
  const Launch launch{
      .launcher = Launcher::torchrun, .size = 2, .host = "127.0.0.1", .port = free_port()};
  const auto own = Roster::Entry{parse_address("127.0.0.1", 1), "here"};
  std::vector<std::string> said(2);
  const auto act = [&](int64_t rank) {
    auto mine = launch;
    mine.rank = rank;
    try {
      auto store = open_store(mine, milliseconds(10'000));
      // The other rank is late: by then rank 0 has long decided.
      if (rank == 1) std::this_thread::sleep_for(milliseconds(300));
      exchange_roster(
          *store, rank, 2, own, rank == 0 ? "it has too few files" : "", milliseconds(10'000));
    } catch (const c10::Error& error) {
      said[static_cast<size_t>(rank)] = error.what_without_backtrace();
    }  // and the store of rank 0 is closed
  };
  std::thread other(act, 1);
  act(0);
  other.join();
  for (const auto& text : said)
    EXPECT_NE(text.find("rank 0: it has too few files"), std::string::npos) << text;
}

TEST(DeparturesTest, ARankThatLeavesIsKnownToThoseThatWaitForIt) {
  const auto store = lone_store();
  Departures first(store, 0, milliseconds(0));
  Departures second(store, 1, milliseconds(0));
  Departures third(store, 2, milliseconds(0));
  EXPECT_EQ(first.reason({0, 1, 2}), "");
  second.leave();
  second.leave();
  EXPECT_EQ(first.reason({0, 2}), "") << "rank 1 has no part in it";
  EXPECT_EQ(first.reason({0, 1}), "rank 1 has left: its process closed the world, or ended");
  try {
    struct Leaver {
      ~Leaver() { departures.leave(); }
      Departures& departures;
    } leaver{third};
    throw std::runtime_error("a mistake");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(first.reason({2}), "rank 2 has left: an exception ended it");
  }
}

TEST(DeparturesTest, TheStoreIsNotAskedMoreOftenThanSaid) {
  const auto store = lone_store();
  Departures first(store, 0, std::chrono::hours(1));
  Departures second(store, 1);
  EXPECT_EQ(first.reason({1}), "");
  second.leave();
  EXPECT_EQ(first.reason({1}), "");
}

}  // namespace
}  // namespace sherd
