// SPDX-License-Identifier: Apache-2.0
// What the nccl backend promises beyond the common suite. Needs a GPU.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/expected.h"
#include "comm/rendezvous.h"

namespace sherd {
namespace {

using testing::on_device;
using testing::test_world;

constexpr int64_t kLongSleep = 200'000'000;  // cycles: over 100 ms

TEST(NcclTest, RunsOnTheGivenStreamAndLeavesTheOthersAlone) {
  auto& comm = test_world().communicator();
  const auto stream = c10::cuda::getStreamFromPool(false, test_world().device().index());
  auto input = at::zeros({1000}, on_device(at::kFloat));
  auto output = at::zeros({1000 * comm.size()}, on_device(at::kFloat));
  c10::cuda::getCurrentCUDAStream().synchronize();
  Work work;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    at::cuda::sleep(kLongSleep);
    input.fill_(7);  // late, and on that stream: the gather must come after it
    work = comm.all_gather(output, input, stream.unwrap());
  }
  EXPECT_FALSE(work.done());
  at::cuda::CUDAEvent idle;
  idle.record();
  idle.synchronize();  // the current stream does not wait for the sleeper
  EXPECT_FALSE(work.done());
  work.synchronize();
  EXPECT_EQ(output.sum().item<float>(), 7000.0f * static_cast<float>(comm.size()));
}

TEST(NcclTest, WaitsForTheCurrentStreamAndIsWaitedForByIt) {
  auto& comm = test_world().communicator();
  auto input = at::zeros({1000}, on_device(at::kFloat));
  auto output = at::zeros({1000 * comm.size()}, on_device(at::kFloat));
  at::cuda::sleep(kLongSleep);
  input.fill_(3);
  auto work = comm.all_gather(output, input);  // on the communicator's own stream
  work.wait();
  auto copy = output.clone();  // on the current stream, without a word to the host
  EXPECT_EQ(copy.sum().item<float>(), 3000.0f * static_cast<float>(comm.size()));
}

TEST(NcclTest, DifferentListsInOneGroupOfASplitThrowOnAllRanks) {
  auto& comm = test_world().communicator();
  if (comm.size() != 4) return;
  const auto rank = comm.rank();
  const std::vector<int64_t> pair = rank == 0   ? std::vector<int64_t>{0, 1}
                                    : rank == 1 ? std::vector<int64_t>{1, 0}
                                                : std::vector<int64_t>{2, 3};
  EXPECT_THROW(comm.split(pair, "pairs"), c10::ValueError);
  const auto half = comm.split({rank / 2 * 2, rank / 2 * 2 + 1}, "pairs");
  EXPECT_EQ(half->rank(), rank % 2);
}

TEST(NcclTest, TakesACapOnCtasAndAPriority) {
  const auto world = World::from_environment(
      {.backend = Backend::nccl, .high_priority_stream = false, .max_ctas = 1});
  auto tensor = at::ones({100'000}, on_device(at::kBFloat16));
  world.communicator().all_reduce(tensor, Reduction::mean()).synchronize();
  EXPECT_EQ(tensor.sum(at::kFloat).item<float>(), 100'000.0f);
}

TEST(NcclTest, ServesAProcessGroupThatTheCallerHas) {
  const auto cpu = World::from_environment({.backend = Backend::mpi});
  auto store =
      cpu.size() == 1 ? lone_store() : shared_store(cpu.communicator(), std::chrono::seconds(60));
  const auto rank = static_cast<int>(cpu.rank());
  const auto size = static_cast<int>(cpu.size());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      c10::make_intrusive<c10d::PrefixStore>("callers", store), rank, size);
  group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  {
    const auto world = World::over(group);
    EXPECT_EQ(world.launcher(), Launcher::caller);
    EXPECT_EQ(world.rank(), rank);
    auto tensor = at::full({10}, rank, on_device(at::kFloat));
    world.communicator().all_reduce(tensor, Reduction::sum()).synchronize();
    EXPECT_EQ(tensor[9].item<float>(), static_cast<float>(size * (size - 1) / 2));
  }
  backend->shutdown();
}

TEST(NcclTest, SaysWhichOperationHangsWhenARankStaysAway) {
  const auto world = World::from_environment(
      {.backend = Backend::nccl, .operation_timeout = std::chrono::seconds(3)});
  auto tensor = at::ones({10}, on_device(at::kFloat));
  if (world.size() == 1) {
    EXPECT_NO_THROW(world.communicator().all_reduce(tensor, Reduction::sum()).synchronize());
  } else if (world.rank() != 0) {
    auto work = world.communicator().all_reduce(tensor, Reduction::sum());
    try {
      work.synchronize();
      ADD_FAILURE() << "rank 0 took no part, and yet it ended";
    } catch (const c10::DistBackendError& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("all_reduce on 'world'"), std::string::npos) << text;
      EXPECT_NE(text.find("not done after 3 s"), std::string::npos) << text;
    }
  }
  test_world().communicator().barrier().synchronize();
}

}  // namespace
}  // namespace sherd
