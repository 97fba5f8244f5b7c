// SPDX-License-Identifier: Apache-2.0
// What the backends for CPU promise beyond the common suite.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/expected.h"

namespace sherd {
namespace {

using testing::test_world;

/// Values whose sum depends on the order of summing.
at::Tensor rough(int64_t rank, int64_t count, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1234 + rank));
  return (at::randn({count}, generator, at::kFloat) *
          at::randn({count}, generator, at::kFloat).exp())
      .to(dtype);
}

/// The sum in the order of the ranks, in fp32, rounded once.
at::Tensor in_order(int64_t ranks, int64_t count, at::ScalarType dtype) {
  auto sum = rough(0, count, dtype).to(at::kFloat);
  for (int64_t rank = 1; rank < ranks; ++rank) sum += rough(rank, count, dtype).to(at::kFloat);
  return sum.to(dtype);
}

TEST(RankOrder, GivesTheBitsOfASumInRankOrderHoweverItIsCut) {
  auto& comm = test_world().communicator();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t each : {11, 3000, 400'001}) {
      const int64_t count = each * comm.size();
      const auto expected = in_order(comm.size(), count, dtype);
      auto part = at::empty({each}, dtype);
      comm.reduce_scatter(part, rough(comm.rank(), count, dtype), Reduction::sum()).wait();
      EXPECT_TRUE(at::equal(part, expected.narrow(0, comm.rank() * each, each)))
          << dtype << " " << each;
      auto whole = rough(comm.rank(), count, dtype);
      comm.all_reduce(whole, Reduction::sum()).wait();
      EXPECT_TRUE(at::equal(whole, expected)) << dtype << " " << each;
    }
  }
}

TEST(RankOrder, SumsSixteenBitsInThirtyTwo) {
  auto& comm = test_world().communicator();
  // 256 + 1 is 256 in bf16: adding ones one by one would lose them all.
  auto tensor = at::full({4}, comm.rank() == 0 ? 256 : 1, at::kBFloat16);
  comm.all_reduce(tensor, Reduction::sum()).wait();
  const auto expected = at::full({4}, 256 + comm.size() - 1, at::kFloat).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(tensor, expected));
}

TEST(RankOrder, KeepsANaNInAMaximum) {
  auto& comm = test_world().communicator();
  auto tensor = at::full({3}, static_cast<double>(comm.rank()), at::kFloat);
  if (comm.rank() == comm.size() / 2) tensor[1] = std::nan("");
  comm.all_reduce(tensor, Reduction::max()).wait();
  EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(comm.size() - 1));
  EXPECT_TRUE(std::isnan(tensor[1].item<float>()));
}

TEST(RankOrder, TwoWorldsOfOneProcessKeepApart) {
  const auto second =
      World::from_environment({.device = c10::kCPU, .operation_timeout = std::chrono::seconds(20)});
  auto& a = test_world().communicator();
  auto& b = second.communicator();
  auto in_a = at::full({1000}, 1.0), in_b = at::full({1000}, 10.0);
  // Each rank uses them in another order.
  Work work_a, work_b;
  if (a.rank() % 2 == 0) work_a = a.all_reduce(in_a, Reduction::sum());
  work_b = b.all_reduce(in_b, Reduction::sum());
  if (a.rank() % 2 == 1) work_a = a.all_reduce(in_a, Reduction::sum());
  work_a.wait();
  work_b.wait();
  EXPECT_EQ(in_a[0].item<float>(), static_cast<float>(a.size()));
  EXPECT_EQ(in_b[0].item<float>(), static_cast<float>(10 * a.size()));
}

TEST(RankOrder, SendsAndReceivesMayCross) {
  auto& comm = test_world().communicator();
  if (comm.size() == 1) {
    EXPECT_THROW(comm.receive(at::empty({1}), 0), c10::ValueError);
    return;
  }
  // Everyone sends large messages before anyone receives: a send never blocks what follows it.
  const int64_t next = (comm.rank() + 1) % comm.size();
  const int64_t previous = (comm.rank() + comm.size() - 1) % comm.size();
  auto out = at::full({1'000'000}, static_cast<double>(comm.rank()), at::kFloat);
  auto in = at::empty({1'000'000}, at::kFloat);
  auto sent = comm.send(out, next);
  auto received = comm.receive(in, previous);
  received.wait();
  sent.wait();
  EXPECT_EQ(in[999'999].item<float>(), static_cast<float>(previous));
}

}  // namespace
}  // namespace sherd
