// SPDX-License-Identifier: Apache-2.0
// The same collectives over mpi and over tcp, in one process: equal to the last bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/rendezvous.h"
#include "ranks/rank_world.h"

namespace sherd {
namespace {

using testing::test_world;

at::Tensor rough_values(int64_t count, at::ScalarType dtype) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(77 + test_world().rank()));
  return (at::randn({count}, generator, at::kFloat) *
          at::randn({count}, generator, at::kFloat).exp())
      .to(dtype);
}

World over_tcp() {
  auto& mpi = test_world().communicator();
  const auto store = shared_store(mpi, std::chrono::seconds(30));
  auto world = World::over(store, mpi.rank(), mpi.size());
  mpi.barrier().wait();  // rank 0 serves the store
  return world;
}

TEST(MpiAndTcp, GiveTheSameBits) {
  const auto tcp = over_tcp();
  EXPECT_EQ(test_world().communicator().backend(), "mpi");
  EXPECT_EQ(tcp.communicator().backend(), "tcp");
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const int64_t each : {1, 1001, 300'007}) {
      std::vector<std::vector<at::Tensor>> results;
      for (auto* comm : {&test_world().communicator(), &tcp.communicator()}) {
        const int64_t count = each * comm->size();
        auto part = at::empty({each}, dtype), full = at::empty({count}, dtype);
        auto swapped = at::empty({count}, dtype);
        auto sum = rough_values(count, dtype), mean = rough_values(count, dtype);
        auto given = rough_values(count, dtype);
        comm->reduce_scatter(part, rough_values(count, dtype), Reduction::mean()).wait();
        comm->all_gather(full, part).wait();
        comm->all_reduce(sum, Reduction::sum()).wait();
        comm->all_reduce(mean, Reduction::mean()).wait();
        comm->all_to_all(swapped, sum).wait();
        comm->broadcast(given, comm->size() - 1).wait();
        results.push_back({part, full, sum, mean, swapped, given});
      }
      for (size_t i = 0; i < results[0].size(); ++i)
        EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << dtype << " " << each << " " << i;
    }
  }
}

TEST(MpiAndTcp, WorkSideBySide) {
  const auto tcp = over_tcp();
  auto& a = test_world().communicator();
  auto& b = tcp.communicator();
  auto in_a = at::full({100'000}, 1.0), in_b = at::full({100'000}, 10.0);
  Work work_a, work_b;  // each rank begins with another one
  if (a.rank() % 2 == 0) work_a = a.all_reduce(in_a, Reduction::sum());
  work_b = b.all_reduce(in_b, Reduction::sum());
  if (a.rank() % 2 == 1) work_a = a.all_reduce(in_a, Reduction::sum());
  work_a.wait();
  work_b.wait();
  EXPECT_EQ(in_a[0].item<float>(), static_cast<float>(a.size()));
  EXPECT_EQ(in_b[0].item<float>(), static_cast<float>(10 * a.size()));
}

}  // namespace
}  // namespace sherd
