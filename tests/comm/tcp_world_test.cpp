// SPDX-License-Identifier: Apache-2.0
// Worlds over tcp whose ranks are threads of this process: they meet at a store in its memory.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "comm/rendezvous.h"
#include "comm/tcp/address.h"
#include "comm/tcp/connect_ranks.h"
#include "comm/tcp/roster.h"
#include "sherd/comm/world.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Runs `body` as each of the ranks, and returns the errors that ended them.
std::vector<std::string> as_ranks(
    const std::vector<int64_t>& ranks, const std::function<void(int64_t)>& body) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        body(ranks[i]);
      } catch (const c10::Error& error) {
        errors[i] = error.what_without_backtrace();
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

float sum_of_ranks(const World& world, int64_t count = 1000) {
  auto tensor = at::full({count}, static_cast<double>(world.rank() + 1));
  world.communicator().all_reduce(tensor, Reduction::sum()).wait();
  return tensor[count - 1].item<float>();
}

TEST(TcpWorld, ItsRanksMeetAtAStoreOfTheCallers) {
  const auto store = lone_store();
  const auto errors = as_ranks({0, 1, 2}, [&](int64_t rank) {
    const auto world = World::over(store, rank, 3);
    EXPECT_EQ(world.rank(), rank);
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.local_rank(), rank);
    EXPECT_EQ(world.local_size(), 3);
    EXPECT_EQ(world.launcher(), Launcher::caller);
    EXPECT_EQ(world.device(), c10::kCPU);
    EXPECT_EQ(world.communicator().backend(), "tcp");
    EXPECT_EQ(sum_of_ranks(world), 6);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(TcpWorld, IsMadeOverAProcessGroupWithoutAGpu) {
  const auto store = lone_store();
  const auto errors = as_ranks({0, 1}, [&](int64_t rank) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(rank), 2);
    const auto world = World::over(group, {.device = c10::kCPU});
    EXPECT_EQ(world.rank(), rank);
    EXPECT_EQ(world.communicator().backend(), "tcp");
    EXPECT_EQ(sum_of_ranks(world), 3);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_THROW(World::over(c10::intrusive_ptr<c10d::ProcessGroup>()), c10::ValueError);
}

TEST(TcpWorld, SeveralWorldsOfOneStoreKeepApart) {
  const auto store = lone_store();
  const auto errors = as_ranks({0, 1}, [&](int64_t rank) {
    const auto first = World::over(store, rank, 2);
    {
      const auto second = World::over(store, rank, 2);
      EXPECT_EQ(sum_of_ranks(second), 3);
      EXPECT_EQ(sum_of_ranks(first), 3);
    }
    EXPECT_EQ(sum_of_ranks(first, 1'000'000), 3) << "the other one is closed";
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(TcpWorld, AProcessAloneNeedsNoConnection) {
  const auto world = World::over(lone_store(), 0, 1);
  EXPECT_EQ(sum_of_ranks(world), 1);
}

TEST(TcpWorld, RanksThatDoNotArriveAreNamed) {
  const auto store = lone_store();
  const auto begin = Clock::now();
  const auto errors = as_ranks(
      {0, 2}, [&](int64_t rank) { World::over(store, rank, 4, {.start_timeout = 500ms}); });
  EXPECT_LT(Clock::now() - begin, 5s);
  for (const auto& error : errors) expect_contains(error, "ranks 1, 3 have not arrived");
}

TEST(TcpWorld, ARankThatCannotListenIsNamedOnAll) {
  const auto store = lone_store();
  const auto begin = Clock::now();
  const auto errors = as_ranks({0, 1, 2}, [&](int64_t rank) {
    WorldOptions options;
    if (rank == 1) options.interface = "no_such_interface";
    World::over(store, rank, 3, options);
  });
  EXPECT_LT(Clock::now() - begin, 20s) << "much less than the start limit";
  for (const auto& error : errors)
    expect_contains(error, "rank 1: [comm.tcp] this machine has no network interface");
}

TEST(TcpWorld, ListensAtTheGivenInterfaceAlone) {
  EXPECT_EQ(own_address("lo", "localhost").text(), "127.0.0.1");
  EXPECT_EQ(own_address("127.0.0.5", "localhost").text(), "127.0.0.5");
  EXPECT_TRUE(own_address("", "127.0.0.1").is_loopback());
  auto address = own_address("127.0.0.5", "");
  const auto listener = listen_at(address);
  EXPECT_GT(address.port(), 0);
  auto elsewhere = parse_address("127.0.0.1", address.port());
  const Descriptor stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(connect(stranger.number(), elsewhere.get(), elsewhere.length), 0);
  auto foreign = parse_address("192.0.2.1", 0);  // an address of documents, of no machine
  EXPECT_THROW(listen_at(foreign), c10::ValueError);
}

TEST(TcpWorld, TooFewFilesAreAnErrorWithTheRemedyOnAllRanks) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(too_few_files_for(8), "");
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto error = too_few_files_for(250);
  setrlimit(RLIMIT_NOFILE, &before);
  expect_contains(
      error, "it needs 249 connections, one to each other rank, but may open 256 files");
  expect_contains(error, "raise the limit with ulimit -n ");

  const auto store = lone_store();
  const auto said = as_ranks({0, 1}, [&](int64_t rank) {
    exchange_roster(
        *store, rank, 2, {parse_address("127.0.0.1", 1), "here"}, rank == 1 ? error : "", 10s);
  });
  for (const auto& text : said) expect_contains(text, "start: rank 1: it needs 249 connections");
}

TEST(TcpWorld, ALoopbackAddressAmongSeveralMachinesIsAnError) {
  const auto store = lone_store();
  const auto errors = as_ranks({0, 1}, [&](int64_t rank) {
    const auto* address = rank == 0 ? "127.0.1.1" : "192.0.2.1";
    exchange_roster(
        *store, rank, 2, {parse_address(address, 1), rank == 0 ? "first" : "second"}, "", 10s);
  });
  for (const auto& error : errors) {
    expect_contains(
        error, "rank 0 listens at 127.0.1.1, which ranks of other machines can't reach");
    expect_contains(error, "SHERD_INTERFACE");
  }
}

TEST(TcpWorld, AnExceptionOnOneRankReachesAll) {
  const auto store = lone_store();
  const auto begin = Clock::now();
  const auto errors = as_ranks({0, 1, 2}, [&](int64_t rank) {
    const auto world = World::over(store, rank, 3);
    sum_of_ranks(world);
    if (rank == 1) throw std::runtime_error("a mistake of this rank alone");
    sum_of_ranks(world);
  });
  EXPECT_LT(Clock::now() - begin, 10s);
  EXPECT_EQ(errors[1], "a mistake of this rank alone");
  for (const int64_t rank : {0, 2}) {
    expect_contains(
        errors[static_cast<size_t>(rank)],
        c10::str(
            "[comm.tcp] rank ", rank, ", all_reduce on 'world' (", rank,
            " of 3): another rank failed: [comm.tcp] rank 1 of 3: an exception ended it"));
  }
}

TEST(TcpWorld, ARankThatLeavesIsNamed) {
  const auto store = lone_store();
  const auto errors = as_ranks({0, 1, 2}, [&](int64_t rank) {
    const auto world = World::over(store, rank, 3);
    sum_of_ranks(world);
    if (rank != 1) sum_of_ranks(world);
  });
  EXPECT_EQ(errors[1], "");
  for (const size_t rank : {0, 2}) expect_contains(errors[rank], "rank 1 has left");
}

TEST(TcpWorld, DifferentSizesAndDifferentCallsAreErrors) {
  for (const bool sizes : {true, false}) {
    const auto store = lone_store();
    const auto errors = as_ranks({0, 1}, [&](int64_t rank) {
      const auto world = World::over(store, rank, 2, {.operation_timeout = 500ms});
      auto& comm = world.communicator();
      const int64_t count = sizes && rank == 1 ? 2000 : 1000;
      if (sizes) comm.all_gather(at::ones({2 * count}), at::ones({count})).wait();
      if (!sizes && rank == 1) comm.broadcast(at::ones({10}), 0).wait();
      comm.all_reduce(at::ones({10}), Reduction::sum()).wait();
    });
    for (const auto& error : errors)
      expect_contains(error, sizes ? "different sizes" : "not done after 0.5 s; no word from rank");
  }
}

/// What connects to a rank's port and is none of its world.
class Strangers {
 public:
  explicit Strangers(const Address& address) : address_(address) {}

  void say_nothing() { add(""); }
  void say(const std::string& bytes) { add(bytes); }
  void close_at_once() {
    add("");
    sockets_.pop_back();
  }
  /// Returns how many of them were disconnected by now.
  int64_t disconnected() const {
    int64_t count = 0;
    for (const auto& each : sockets_) {
      char byte = 0;
      const auto got = recv(each.number(), &byte, 1, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN)) ++count;
    }
    return count;
  }

 private:
  void add(const std::string& bytes) {
    sockets_.emplace_back(socket(address_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    TORCH_CHECK(connect(sockets_.back().number(), address_.get(), address_.length) == 0);
    TORCH_CHECK(
        ::send(sockets_.back().number(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
        std::ssize(bytes));
  }

  Address address_;
  std::vector<Descriptor> sockets_;
};

/// What rank 1 says first if each byte of the token is this one.
std::string introduction_of_rank_1(char token) {
  const uint64_t version = 0x7368657264000001;
  const int64_t rank = 1;
  std::string text(32, token);
  text.replace(0, 8, reinterpret_cast<const char*>(&version), 8);
  text.replace(24, 8, reinterpret_cast<const char*>(&rank), 8);
  return text;
}

/// The roster of ranks at one address each, and their listeners.
struct Listening {
  explicit Listening(int64_t size) {
    for (int64_t rank = 0; rank < size; ++rank) {
      auto address = parse_address("127.0.0.1", 0);
      listeners.push_back(listen_at(address));
      roster.ranks.push_back({address, "here"});
    }
    roster.token.fill(0x5a);
  }
  Roster roster;
  std::vector<Descriptor> listeners;
};

TEST(TcpStrangers, HoldUpNothingAndAreDropped) {
  Listening all(3);
  Strangers strangers(all.roster.ranks[0].address);
  // A half-open connection, one that is gone again, a browser's, and one that never ends a line.
  strangers.say_nothing();
  strangers.close_at_once();
  strangers.say("GET / HTTP/1.1\r\nHost: rank0\r\nAccept: */*\r\n\r\n");
  strangers.say(std::string(7, '\0'));
  // As a rank would, but with a token that is made up.
  strangers.say(introduction_of_rank_1('\x5b'));
  for (int i = 0; i < 100; ++i) strangers.say_nothing();  // more than are kept open
  std::vector<int64_t> connected(3);
  const auto errors = as_ranks({0, 1, 2}, [&](int64_t rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank));
    const auto index = static_cast<size_t>(rank);
    const auto sockets = connect_ranks(all.listeners[index], all.roster, rank, Clock::now() + 10s);
    for (const auto& socket : sockets) connected[index] += socket ? 1 : 0;
    if (rank == 0) {
      EXPECT_GE(strangers.disconnected(), 30) << "too many are not kept";
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
  EXPECT_EQ(connected, std::vector<int64_t>({2, 2, 2}));
  EXPECT_EQ(strangers.disconnected(), 104) << "the others, when all ranks are connected";
}

/// The files that this process may open, while it exists.
class FileLimit {
 public:
  explicit FileLimit(int64_t more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const std::filesystem::directory_iterator open("/proc/self/fd");
    auto limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(std::distance(begin(open), end(open)) - 1 + more);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~FileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(TcpStrangers, ThatUseUpTheFilesAreDroppedForARank) {
  Listening all(2);
  Strangers strangers(all.roster.ranks[0].address);
  for (int i = 0; i < 12; ++i) strangers.say_nothing();
  Strangers rank(all.roster.ranks[0].address);  // after them in the queue
  rank.say(introduction_of_rank_1('\x5a'));
  const FileLimit few(4);
  EXPECT_TRUE(connect_ranks(all.listeners[0], all.roster, 0, Clock::now() + 10s)[1]);
}

TEST(TcpStrangers, AConnectionThatVanishesBreaksWithBytesUnderWayToo) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_connection_options(socket);
  int limit = 0;
  socklen_t length = sizeof(limit);
  ASSERT_EQ(getsockopt(socket.number(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, &length), 0);
  EXPECT_EQ(limit, 120'000);
}

TEST(TcpStrangers, AConnectionThatProvesTheTokenIsTaken) {
  // The introduction that the test above spoils by its token.
  Listening all(2);
  Strangers impostor(all.roster.ranks[0].address);
  impostor.say(introduction_of_rank_1('\x5a'));
  EXPECT_TRUE(connect_ranks(all.listeners[0], all.roster, 0, Clock::now() + 10s)[1]);
}

TEST(TcpStrangers, AtARanksPortAreNotTakenForTheRank) {
  Listening all(2);
  const auto wrong = as_ranks({1, 0}, [&](int64_t rank) {
    auto roster = all.roster;
    if (rank == 0) roster.token.fill(0x11);
    connect_ranks(all.listeners[static_cast<size_t>(rank)], roster, rank, Clock::now() + 1s);
  });
  expect_contains(wrong[0], "[comm.tcp] rank 1 of 2, start: can't connect to rank 0 at 127.0.0.1:");
  expect_contains(wrong[1], "[comm.tcp] rank 0 of 2, start: rank 1 has not connected");
}

TEST(TcpStrangers, APortWhereNothingListensIsNamed) {
  Listening all(2);
  all.listeners[0].close();
  const auto errors = as_ranks({1}, [&](int64_t rank) {
    connect_ranks(all.listeners[1], all.roster, rank, Clock::now() + 10s);
  });
  expect_contains(errors[0], "can't connect to rank 0 at 127.0.0.1:");
  expect_contains(errors[0], "Connection refused");
}

}  // namespace
}  // namespace sherd
