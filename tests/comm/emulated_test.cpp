// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>

#include "comm/emulated/recorded_calls.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"

namespace sherd {
namespace {

double seconds_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Emulated, RecordsWhatWasCalledOnEveryAxis) {
  const auto world = World::emulated({.rank = 5, .size = 8});
  const Mesh mesh(world, {{"dp_outer", 2}, {"dp", 4}});
  auto part = at::ones({10});
  auto full = at::zeros({40});
  mesh.communicator("dp").all_gather(full, part).wait();
  mesh.communicator("dp_outer").all_reduce(part, Reduction::sum()).wait();
  const std::vector<RecordedCall> expected{
      {Collective::all_gather, "dp", 4, 160, at::kFloat},
      {Collective::all_reduce, "dp_outer", 2, 40, at::kFloat}};
  EXPECT_EQ(recorded_calls(world.communicator(), /*forget=*/true), expected);
  EXPECT_TRUE(recorded_calls(world.communicator()).empty());
  EXPECT_EQ(full.sum().item<float>(), 40);
}

TEST(Emulated, TakesTheTimeOfTheDescribedNetwork) {
  Network network;
  network.axes["dp"] = {.latency = 0.02, .bandwidth = 1e6};
  const auto world = World::emulated({.rank = 0, .size = 4, .network = network});
  const Mesh mesh(world, {{"dp", 4}});
  auto part = at::ones({10'000});
  auto full = at::zeros({40'000});
  auto& comm = mesh.communicator("dp");
  const double expected = 0.02 + 120'000 / 1e6;  // three quarters of 160,000 bytes
  Work work;
  EXPECT_LT(seconds_of([&] { work = comm.all_gather(full, part); }), expected / 2)
      << "the call itself must not wait";
  EXPECT_FALSE(work.done());
  const double waited = seconds_of([&] { work.wait(); });
  EXPECT_GT(waited, expected * 0.7);
  EXPECT_LT(waited, expected * 1.5);
  EXPECT_TRUE(work.done());
  // One that was opened for a purpose runs along the same axis.
  const auto gathers = mesh.new_communicator("dp", "dp.gather");
  EXPECT_GT(seconds_of([&] { gathers->all_gather(full, part).wait(); }), expected * 0.9);
  // Two operations of one communicator take turns.
  const double both = seconds_of([&] {
    comm.all_gather(full, part);
    comm.all_gather(full, part).wait();
  });
  EXPECT_GT(both, expected * 1.9);
}

TEST(Emulated, IsAnyRankOfAWorldOf65536) {
  const auto world = World::emulated({.rank = 65'535, .size = 65'536});
  EXPECT_EQ(world.launcher(), Launcher::emulated);
  auto full = at::zeros({65'536 * 2});
  world.communicator().all_gather(full, at::arange(2, at::kFloat)).wait();
  EXPECT_EQ(full.sum().item<float>(), 65'536);
  const Mesh mesh(world, {{"dp_outer", 64}, {"dp", 1024}});
  EXPECT_EQ(mesh.coordinate("dp"), 1023);
  EXPECT_EQ(mesh.coordinate("dp_outer"), 63);
}

TEST(Emulated, RefusesWorldsThatCannotBe) {
  EXPECT_THROW(World::emulated({.rank = 0, .size = 65'537}), c10::ValueError);
  EXPECT_THROW(World::emulated({.rank = 4, .size = 4}), c10::ValueError);
  EXPECT_THROW(World::emulated({.rank = 0, .size = 0}), c10::ValueError);
}

TEST(Alone, IsAWorldOfOneWithoutMpi) {
  const auto world = World::from_environment({.backend = Backend::mpi});
  EXPECT_EQ(world.launcher(), Launcher::alone);
  EXPECT_EQ(world.size(), 1);
  auto tensor = at::ones({4});
  world.communicator().all_reduce(tensor, Reduction::scaled_sum(0.5)).wait();
  EXPECT_EQ(tensor.sum().item<float>(), 2);
  EXPECT_THROW(recorded_calls(world.communicator()), c10::ValueError);
}

}  // namespace
}  // namespace sherd
