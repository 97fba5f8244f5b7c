// SPDX-License-Identifier: Apache-2.0
// Symmetric memory: what is registered with NCCL carries the same bits as any other. Needs a GPU.
#include "comm/nccl/symmetric.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <iostream>
#include <numeric>

#include "comm/expected.h"

namespace sherd {
namespace {

using testing::contribution;
using testing::joined;
using testing::on_device;
using testing::test_world;

constexpr int64_t kPage = int64_t{2} << 20;

/// A communicator of all ranks, for this test alone.
std::shared_ptr<Communicator> another(const std::string& name) {
  std::vector<int64_t> ranks(static_cast<size_t>(test_world().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return test_world().communicator().split(ranks, name);
}

/// `count` elements for each rank, from a byte of a memory on.
at::Tensor slot(const at::Tensor& memory, int64_t byte, int64_t count, at::ScalarType dtype) {
  const auto width = static_cast<int64_t>(at::elementSize(dtype));
  return memory.narrow(0, byte, count * test_world().size() * width).view(dtype);
}

at::Tensor own_part(const at::Tensor& full) {
  const int64_t count = full.numel() / test_world().size();
  return full.narrow(0, test_world().rank() * count, count);
}

at::Tensor all_contributions(int64_t count, at::ScalarType dtype, int64_t salt) {
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < test_world().size(); ++rank) {
    parts.push_back(contribution(rank, count, dtype, salt));
  }
  return at::cat(parts);
}

/// In place: fills this rank's part and gathers the others'.
void gather(Communicator& communicator, const at::Tensor& full, int64_t salt) {
  const auto own = own_part(full);
  own.copy_(contribution(communicator.rank(), own.numel(), own.scalar_type(), salt));
  communicator.all_gather(full, own).wait();
}

/// In place: this rank's part takes the sum.
void reduce(Communicator& communicator, const at::Tensor& full, int64_t salt) {
  full.copy_(contribution(communicator.rank(), full.numel(), full.scalar_type(), salt));
  communicator.reduce_scatter(own_part(full), full, Reduction::sum()).wait();
}

at::Tensor own_sum(const Communicator& communicator, const at::Tensor& full, int64_t salt) {
  return own_part(joined(communicator, full.numel(), full.scalar_type(), Reduction::sum(), salt));
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "nothing was refused";
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const auto& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

TEST(SymmetricTest, TakesWholePagesAndGivesThemBack) {
  EXPECT_EQ(symmetric_bytes(0), 0);
  EXPECT_EQ(symmetric_bytes(1), kPage);
  EXPECT_EQ(symmetric_bytes(kPage), kPage);
  EXPECT_EQ(symmetric_bytes(kPage + 1), 2 * kPage);

  const auto device = test_world().device();
  auto memory = symmetric_memory(10 * kPage + 1, device);
  EXPECT_EQ(memory.numel(), 10 * kPage + 1);
  EXPECT_EQ(memory.scalar_type(), at::kByte);
  EXPECT_EQ(memory.device(), device);
  memory.fill_(7);
  EXPECT_EQ(memory.sum(at::kLong).item<int64_t>(), 7 * memory.numel());
  EXPECT_EQ(symmetric_memory(0, device).numel(), 0);
  if (test_world().size() > 1) return;  // the other ranks allocate on the same GPU
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return static_cast<int64_t>(free);
  };
  const auto with = free_bytes();
  memory.reset();
  EXPECT_EQ(free_bytes() - with, symmetric_bytes(10 * kPage + 1));
}

TEST(SymmetricTest, RefusesWhatIsNotNccl) {
  expect_words(
      refusal([] { symmetric_memory(kPage, c10::kCPU); }),
      {"[comm.symmetric]", "the device is cpu", "[memory] symmetric"});
  const auto memory = symmetric_memory(kPage, test_world().device());
  const auto mpi = World::from_environment({.backend = Backend::mpi});
  expect_words(
      refusal([&] { register_window(mpi.communicator(), memory); }),
      {"[comm.symmetric]", "symmetric memory is NCCL's; the backend is mpi", "run over nccl"});
  const auto emulated = World::emulated({.rank = 1, .size = 2, .device = test_world().device()});
  expect_words(
      refusal([&] { register_window(emulated.communicator(), memory); }),
      {"symmetric memory is NCCL's; the backend is emulated"});
  EXPECT_EQ(symmetric_text(mpi.communicator()), "NCCL's symmetric kernels: no, the backend is mpi");
}

TEST(SymmetricTest, RefusesOtherMemoryAndPartsAndASecondTime) {
  auto& comm = test_world().communicator();
  const auto ordinary = at::empty({kPage}, on_device(at::kByte));
  expect_words(
      refusal([&] { register_window(comm, ordinary); }),
      {"[comm.symmetric]", "'world'", "only what symmetric_memory() gave"});
  const auto memory = symmetric_memory(kPage, test_world().device());
  expect_words(
      refusal([&] { register_window(comm, memory.narrow(0, 0, 4096)); }),
      {"a part of 4096 bytes", "the whole memory of 2097152"});
  const auto window = register_window(comm, memory);
  expect_words(refusal([&] { register_window(comm, memory); }), {"already registered"});
}

TEST(SymmetricTest, RefusesDifferentSizesOnAllRanks) {
  auto& comm = test_world().communicator();
  const auto memory = symmetric_memory(comm.rank() == 1 ? 2 * kPage : kPage, test_world().device());
  if (comm.size() == 1) {
    EXPECT_NO_THROW(register_window(comm, memory));
  } else {
    expect_words(
        refusal([&] { register_window(comm, memory); }),
        {"different sizes", "0 2097152 bytes", "1 4194304 bytes"});
  }
  comm.barrier().synchronize();  // it still works
}

TEST(SymmetricTest, GathersAndReducesInPlaceWithTheSameBits) {
  const auto gathers = another("gathers");
  const auto reduces = another("reduces");
  const auto device = test_world().device();
  constexpr int64_t kBig = 1 << 20;
  // Two slots; the second does not begin on a page.
  const int64_t second = kBig * 4 * test_world().size() + 4096;
  const auto bytes = 2 * second;
  const auto memory = symmetric_memory(bytes, device);
  memory.zero_();
  const auto first_window = register_window(*gathers, memory);
  const auto second_window = register_window(*reduces, memory);
  const auto ordinary = at::zeros({bytes}, on_device(at::kByte));
  std::cout << symmetric_text(*gathers) << "\n";

  int64_t salt = 0;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t count : {int64_t{16}, int64_t{1003}, kBig}) {
      ++salt;
      for (const auto& place : {memory, ordinary}) {
        gather(*gathers, slot(place, 0, count, dtype), salt);
        reduce(*reduces, slot(place, second, count, dtype), salt);
      }
      const auto gathered = slot(memory, 0, count, dtype);
      EXPECT_TRUE(at::equal(gathered, slot(ordinary, 0, count, dtype))) << dtype << " " << count;
      EXPECT_TRUE(at::equal(gathered, all_contributions(count, dtype, salt)));
      const auto reduced = slot(memory, second, count, dtype);
      const auto reduced_there = slot(ordinary, second, count, dtype);
      EXPECT_TRUE(at::equal(own_part(reduced), own_part(reduced_there))) << dtype << " " << count;
      EXPECT_TRUE(at::equal(own_part(reduced).to(at::kDouble), own_sum(*reduces, reduced, salt)));
    }
  }
}

TEST(SymmetricTest, MovesDtypesThatNcclLacksAndGroups) {
  const auto comm = another("groups");
  const int64_t page = kPage * test_world().size();
  const auto memory = symmetric_memory(8 * page, test_world().device());
  memory.zero_();
  const auto window = register_window(*comm, memory);

  const auto fp8 = slot(memory, 0, 1000, at::kFloat8_e4m3fn);
  const auto values = contribution(comm->rank(), 1000, at::kFloat8_e4m3fn).view(at::kByte);
  own_part(fp8).view(at::kByte).copy_(values);
  comm->all_gather(fp8, own_part(fp8)).wait();
  for (int64_t rank = 0; rank < comm->size(); ++rank) {
    const auto expected = contribution(rank, 1000, at::kFloat8_e4m3fn).view(at::kByte);
    EXPECT_TRUE(at::equal(fp8.view(at::kByte).narrow(0, rank * 1000, 1000), expected)) << rank;
  }

  std::vector<Transfer> gathers, reduces;
  for (const int64_t i : {1, 2, 3}) {
    const auto full = slot(memory, i * page, 1000 * i, at::kBFloat16);
    own_part(full).copy_(contribution(comm->rank(), 1000 * i, at::kBFloat16, i));
    gathers.push_back({full, own_part(full)});
    const auto sums = slot(memory, (3 + i) * page, 1000 * i, at::kFloat);
    sums.copy_(contribution(comm->rank(), sums.numel(), at::kFloat, i));
    reduces.push_back({own_part(sums), sums});
  }
  comm->all_gather(gathers).wait();
  comm->reduce_scatter(reduces, Reduction::scaled_sum(0.5)).wait();
  for (const int64_t i : {1, 2, 3}) {
    const auto which = static_cast<size_t>(i - 1);
    EXPECT_TRUE(at::equal(gathers[which].output, all_contributions(1000 * i, at::kBFloat16, i)));
    const auto expected = own_sum(*comm, reduces[which].input, i) * 0.5;
    EXPECT_TRUE(at::equal(reduces[which].output.to(at::kDouble), expected)) << i;
  }
}

TEST(SymmetricTest, IsCapturedAndReplayed) {
  const auto comm = another("captured");
  constexpr int64_t kCount = 100'003;
  const auto memory = symmetric_memory(8 * kPage * test_world().size(), test_world().device());
  memory.zero_();
  const auto window = register_window(*comm, memory);
  const auto parameters = slot(memory, 0, kCount, at::kBFloat16);
  const auto gradients = slot(memory, 4 * kPage * test_world().size(), kCount, at::kFloat);
  const auto shard = at::zeros({kCount}, on_device(at::kBFloat16));
  const auto gradient = at::zeros({gradients.numel()}, on_device(at::kFloat));
  const auto stream = c10::cuda::getStreamFromPool(false, test_world().device().index());
  const auto step = [&] {
    own_part(parameters).copy_(shard);
    comm->all_gather(parameters, own_part(parameters), stream.unwrap());
    gradients.copy_(gradient);
    comm->reduce_scatter(own_part(gradients), gradients, Reduction::sum(), stream.unwrap());
  };

  at::cuda::CUDAGraph graph;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    step();  // what NCCL sets up once is not for the graph
    stream.synchronize();
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    step();
    graph.capture_end();
  }
  for (const int64_t salt : {1, 2, 3}) {
    const c10::cuda::CUDAStreamGuard guard(stream);
    shard.copy_(contribution(comm->rank(), kCount, at::kBFloat16, salt));
    gradient.copy_(contribution(comm->rank(), gradient.numel(), at::kFloat, salt));
    graph.replay();
    EXPECT_TRUE(at::equal(parameters, all_contributions(kCount, at::kBFloat16, salt)));
    EXPECT_TRUE(at::equal(own_part(gradients).to(at::kDouble), own_sum(*comm, gradients, salt)));
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(SymmetricTest, EndsInAnyOrder) {
  const auto device = test_world().device();
  auto memory = symmetric_memory(kPage, device);
  memory.zero_();
  const auto works = [&](Communicator& communicator) {
    const auto full = slot(memory, 0, 1000, at::kFloat);
    gather(communicator, full, 5);
    EXPECT_TRUE(at::equal(full, all_contributions(1000, at::kFloat, 5)));
  };
  auto first = another("first");
  auto second = another("second");
  auto first_window = register_window(*first, memory);
  auto second_window = register_window(*second, memory);
  works(*first);
  first_window.reset();  // the window before its communicator
  works(*first);         // as ordinary memory now
  works(*second);
  first_window = register_window(*first, memory);
  works(*first);
  second.reset();  // the communicator before its window
  second_window.reset();
  works(*first);
  memory.reset();  // the memory first: its window keeps it
  first->barrier().synchronize();
  first_window.reset();
  first.reset();
}

TEST(SymmetricTest, ReportsHowNcclUsesIt) {
  const auto comm = another("said");
  const auto before = symmetric_text(*comm);
  const auto memory = symmetric_memory(kPage, test_world().device());
  const auto window = register_window(*comm, memory);
  const auto after = symmetric_text(*comm);
  if (comm->size() == 1) {
    expect_words(after, {"no, one rank"});
  } else {
    expect_words(before, {"no, nothing is registered"});
    const bool known = after.find("no, each rank is on a host of its own") != std::string::npos ||
                       after.find("yes, all ") != std::string::npos;
    EXPECT_TRUE(known) << after;
  }
}

}  // namespace
}  // namespace sherd
