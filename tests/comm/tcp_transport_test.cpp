// SPDX-License-Identifier: Apache-2.0
// Both ends of a connection in one thread, so that each test decides in which order things happen.
#include "comm/tcp/tcp_transport.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace sherd {
namespace {

constexpr int64_t kSmallMessage = 1000;
constexpr int64_t kLargeMessage = 5'000'000;  // several pieces

std::vector<char> pattern(int64_t bytes, int seed) {
  std::vector<char> data(static_cast<size_t>(bytes));
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<char>(i * 31 + static_cast<size_t>(seed) * 7 + (i >> 9));
  return data;
}

/// Two ranks. The test holds a copy of rank 1's socket's number, to break it.
class TcpTransportTest : public ::testing::Test {
 protected:
  using Request = std::unique_ptr<Transport::Request>;

  TcpTransportTest() {
    int pair[2];
    TORCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    std::vector<Descriptor> first(2), second(2);
    first[1] = Descriptor(pair[0]);
    second[0] = Descriptor(pair[1]);
    socket_of_second = pair[1];
    a = tcp_transport(0, std::move(first));
    b = tcp_transport(1, std::move(second));
  }

  Request send(Transport& from, int tag, const std::vector<char>& data) {
    return from.send(1 - from.rank(), tag, data.data(), std::ssize(data));
  }
  Request receive(Transport& to, int tag, std::vector<char>& data) {
    return to.receive(1 - to.rank(), tag, data.data(), std::ssize(data));
  }
  /// Moves messages until it is so; false if that never is.
  bool until(const std::function<bool()>& is_so) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!is_so() && std::chrono::steady_clock::now() < deadline) {
      a->progress();
      b->progress();
    }
    return is_so();
  }
  /// Moves messages for so many turns, in which everything arrives that can.
  void turn(int count = 200) {
    for (int i = 0; i < count; ++i) {
      a->progress();
      b->progress();
    }
  }

  std::unique_ptr<Transport> a, b;
  int socket_of_second = -1;
};

TEST_F(TcpTransportTest, MovesMessagesOfAllSizesInBothDirectionsAtOnce) {
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1}, kSmallMessage, int64_t{65'536}, int64_t{65'537}, int64_t{1 << 20},
        kLargeMessage}) {
    const auto there = pattern(bytes, 1), back = pattern(bytes, 2);
    std::vector<char> at_a(there.size()), at_b(there.size());
    auto sent = send(*a, 7, there), answered = send(*b, 7, back);
    auto in_b = receive(*b, 7, at_b), in_a = receive(*a, 7, at_a);
    ASSERT_TRUE(until([&] {
      return sent->test() && answered->test() && in_b->test() && in_a->test();
    })) << bytes;
    EXPECT_EQ(at_a, back) << bytes;
    EXPECT_EQ(at_b, there) << bytes;
  }
}

TEST_F(TcpTransportTest, KeepsTheOrderOfATagWhicheverComesFirst) {
  // Large and small ones by turns; half of the receives are posted before, half after.
  std::vector<std::vector<char>> sent, got;
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    sent.push_back(pattern(i % 2 == 0 ? kLargeMessage + i : kSmallMessage + i, i));
    got.emplace_back(sent.back().size());
  }
  for (int i = 0; i < 4; ++i) requests.push_back(receive(*b, 3, got[static_cast<size_t>(i)]));
  for (int i = 0; i < 8; ++i) requests.push_back(send(*a, 3, sent[static_cast<size_t>(i)]));
  turn();
  for (int i = 4; i < 8; ++i) requests.push_back(receive(*b, 3, got[static_cast<size_t>(i)]));
  ASSERT_TRUE(until([&] {
    return std::all_of(requests.begin(), requests.end(), [](auto& each) { return each->test(); });
  }));
  EXPECT_EQ(got, sent);
}

TEST_F(TcpTransportTest, ALargeMessageWaitsAtItsSenderForItsReceiveAndHoldsUpNoOther) {
  const auto large = pattern(kLargeMessage, 1), small = pattern(kSmallMessage, 2);
  auto large_sent = send(*a, 1, large), small_sent = send(*a, 2, small);
  std::vector<char> small_got(small.size()), large_got(large.size());
  auto small_in = receive(*b, 2, small_got);
  ASSERT_TRUE(until([&] { return small_in->test(); }));
  turn();
  EXPECT_FALSE(large_sent->test()) << "its bytes are kept nowhere";
  auto large_in = receive(*b, 1, large_got);
  ASSERT_TRUE(until([&] { return large_in->test() && large_sent->test(); }));
  EXPECT_EQ(large_got, large);
}

TEST_F(TcpTransportTest, AShortMessageOvertakesThePiecesOfALargeOne) {
  const auto large = pattern(64 << 20, 1), small = pattern(kSmallMessage, 2);
  std::vector<char> large_got(large.size()), small_got(small.size());
  auto large_in = receive(*b, 1, large_got), small_in = receive(*b, 2, small_got);
  auto large_sent = send(*a, 1, large);
  ASSERT_TRUE(
      until([&] { return large_got.front() == large.front() && large_got[9] == large[9]; }));
  auto small_sent = send(*a, 2, small);
  ASSERT_TRUE(until([&] { return small_in->test(); }));
  EXPECT_FALSE(large_in->test());
  ASSERT_TRUE(until([&] { return large_in->test() && large_sent->test() && small_sent->test(); }));
  EXPECT_EQ(large_got, large);
}

TEST_F(TcpTransportTest, AnotherLengthIsAnErrorOfTheReceive) {
  for (const int64_t bytes : {kSmallMessage, kLargeMessage}) {
    for (const bool early : {false, true}) {
      const auto data = pattern(bytes, 1);
      std::vector<char> longer(data.size() + 1);
      Request in;
      if (!early) in = receive(*b, 4, longer);
      auto sent = send(*a, 4, data);
      turn();
      if (early) in = receive(*b, 4, longer);
      turn();
      try {
        in->test();
        FAIL() << "no error";
      } catch (const c10::Error& error) {
        EXPECT_NE(
            std::string(error.what())
                .find(
                    c10::str("rank 0 sent ", bytes, " bytes where ", bytes + 1, " were expected")),
            std::string::npos)
            << error.what();
      }
    }
  }
}

TEST_F(TcpTransportTest, AReceiveFromAnyRankTakesShorterMessagesInTheirOrder) {
  std::vector<char> got(100);
  auto first = send(*a, 0, pattern(10, 1)), second = send(*a, 0, pattern(20, 2));
  turn();
  auto in = b->receive_any(0, got.data(), std::ssize(got));
  EXPECT_TRUE(in->test());
  EXPECT_EQ(std::vector<char>(got.begin(), got.begin() + 10), pattern(10, 1));
  in = b->receive_any(0, got.data(), std::ssize(got));
  EXPECT_TRUE(in->test());
  EXPECT_EQ(std::vector<char>(got.begin(), got.begin() + 20), pattern(20, 2));
}

TEST_F(TcpTransportTest, AReceiveThatIsGivenUpTouchesItsMemoryNoMore) {
  const auto large = pattern(64 << 20, 1), small = pattern(kSmallMessage, 2);
  std::vector<char> large_got(large.size()), small_got(small.size());
  auto large_in = receive(*b, 1, large_got);
  auto unused = receive(*b, 2, small_got);
  unused.reset();
  auto large_sent = send(*a, 1, large);
  ASSERT_TRUE(until([&] { return large_got[9] == large[9]; }));
  large_in.reset();
  std::fill(large_got.begin(), large_got.end(), 'x');
  auto small_in = receive(*b, 2, small_got);
  auto small_sent = send(*a, 2, small);
  ASSERT_TRUE(until([&] { return small_in->test() && large_sent->test(); }));
  EXPECT_EQ(small_got, small);
  EXPECT_EQ(large_got, std::vector<char>(large.size(), 'x'));
}

TEST_F(TcpTransportTest, ALostConnectionIsNamedAfterWhatStillCame) {
  std::vector<char> got(10), never(10);
  auto sent = send(*b, 1, pattern(10, 1));
  auto large_sent = send(*a, 1, pattern(kLargeMessage, 1));
  b.reset();  // as when its process ends
  b = std::move(a);
  a = tcp_transport(0, {});
  ASSERT_TRUE(until([&] { return !b->lost().empty(); }));
  EXPECT_NE(b->lost().at(1), "");
  auto in = b->receive(1, 1, got.data(), 10);
  EXPECT_TRUE(in->test()) << "it came before";
  EXPECT_EQ(got, pattern(10, 1));
  EXPECT_TRUE(large_sent->test()) << "its memory may be used again";
  EXPECT_TRUE(b->send(1, 1, got.data(), 10)->test());
  auto no_more = b->receive(1, 1, never.data(), 10);
  turn(5);
  EXPECT_FALSE(no_more->test());
}

TEST_F(TcpTransportTest, BytesThatAreNoMessageEndTheConnectionAlone) {
  const std::string garbage(4096, 'g');
  ASSERT_EQ(::send(socket_of_second, garbage.data(), garbage.size(), 0), 4096);
  ASSERT_TRUE(until([&] { return !a->lost().empty(); }));
  EXPECT_NE(a->lost().at(1).find("no message"), std::string::npos);
}

TEST_F(TcpTransportTest, TheEndWaitsForWhatIsOnItsWay) {
  const auto small = pattern(60'000, 2);
  std::vector<std::vector<char>> got(3, std::vector<char>(small.size()));
  std::vector<Request> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(send(*a, 2, small));
  a->finish();
  for (auto& each : got) {
    auto in = receive(*b, 2, each);
    for (int i = 0; i < 100 && !in->test(); ++i) b->progress();
    ASSERT_TRUE(in->test());
    EXPECT_EQ(each, small);
  }
}

}  // namespace
}  // namespace sherd
