// SPDX-License-Identifier: Apache-2.0
// What every backend must do; runs over mpi, nccl and emulated.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>

#include "comm/expected.h"
#include "sherd/comm/communicator.h"

namespace sherd {
namespace {

using testing::contribution;
using testing::floating_dtypes;
using testing::joined;
using testing::moved_dtypes;
using testing::near;
using testing::on_device;
using testing::seen;
using testing::test_world;

class Collectives : public ::testing::Test {
 protected:
  Communicator& comm = test_world().communicator();
  int64_t rank = comm.rank();
  int64_t size = comm.size();

  at::Tensor mine(int64_t count, at::ScalarType dtype = at::kFloat, int64_t salt = 0) const {
    return contribution(rank, count, dtype, salt);
  }
  at::Tensor blank(int64_t count, at::ScalarType dtype = at::kFloat) const {
    return at::full({count}, 99, on_device(at::kFloat)).to(dtype);
  }
  at::Tensor gathered(int64_t count, at::ScalarType dtype = at::kFloat, int64_t salt = 0) const {
    std::vector<at::Tensor> parts;
    for (int64_t k = 0; k < size; ++k)
      parts.push_back(contribution(seen(comm, k), count, dtype, salt));
    return at::cat(parts);
  }
  static bool same(const at::Tensor& a, const at::Tensor& b) {
    return at::equal(a.view(at::kByte), b.view(at::kByte));
  }
};

TEST_F(Collectives, AllGatherMovesEveryDtype) {
  for (const auto dtype : moved_dtypes()) {
    auto output = blank(size * 37, dtype);
    comm.all_gather(output, mine(37, dtype)).synchronize();
    EXPECT_TRUE(same(output, gathered(37, dtype))) << dtype;
  }
}

TEST_F(Collectives, AllGatherWorksInPlace) {
  auto output = blank(size * 1000);
  auto own = output.narrow(0, rank * 1000, 1000);
  own.copy_(mine(1000));
  comm.all_gather(output, own).synchronize();
  EXPECT_TRUE(same(output, gathered(1000)));
}

TEST_F(Collectives, AllGatherMovesSeveralBuffersOfAnySizeAtOnce) {
  std::vector<Transfer> transfers;
  const std::vector<int64_t> counts{5, 0, 100'003, 64};
  for (const int64_t count : counts)
    transfers.push_back({blank(size * count), mine(count, at::kFloat, count)});
  comm.all_gather(transfers).synchronize();
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_TRUE(same(transfers[i].output, gathered(counts[i], at::kFloat, counts[i]))) << counts[i];
  }
}

TEST_F(Collectives, ReduceScatterJoinsEveryWay) {
  const std::vector<Reduction> ways{
      Reduction::sum(), Reduction::mean(), Reduction::max(), Reduction::scaled_sum(0.25)};
  for (const auto& way : ways) {
    for (const auto dtype : floating_dtypes()) {
      auto output = blank(41, dtype);
      comm.reduce_scatter(output, mine(size * 41, dtype), way).synchronize();
      const auto expected = joined(comm, size * 41, dtype, way).narrow(0, rank * 41, 41);
      EXPECT_TRUE(near(output, expected, comm)) << dtype << " way " << static_cast<int>(way.kind);
    }
  }
}

/// A field and its bits turned over: the largest of both are its largest and its smallest value.
TEST_F(Collectives, AllReduceFindsTheLargestAndTheSmallestLong) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const auto far = [](int64_t k) { return (k % 2 == 0 ? 1 : -1) * ((int64_t{1} << 62) + k); };
  auto values =
      at::tensor({far(rank), ~far(rank), kLeast, ~rank}, at::kLong).to(test_world().device());
  comm.all_reduce(values, Reduction::max()).synchronize();
  int64_t largest = kLeast;
  int64_t smallest = ~kLeast;
  int64_t first = size;
  for (int64_t k = 0; k < size; ++k) {
    largest = std::max(largest, far(seen(comm, k)));
    smallest = std::min(smallest, far(seen(comm, k)));
    first = std::min(first, seen(comm, k));
  }
  const auto found = values.cpu();
  EXPECT_TRUE(at::equal(found, at::tensor({largest, ~smallest, kLeast, ~first}, at::kLong)))
      << found;
}

TEST_F(Collectives, ReduceScatterJoinsIntegersExactly) {
  for (const auto dtype : {at::kByte, at::kChar, at::kInt, at::kLong}) {
    for (const auto& way : {Reduction::sum(), Reduction::max()}) {
      auto output = blank(17, dtype);
      comm.reduce_scatter(output, mine(size * 17, dtype), way).synchronize();
      // Through int64, so that a sum that passes a byte wraps as the dtype does.
      const auto expected =
          joined(comm, size * 17, dtype, way).narrow(0, rank * 17, 17).to(at::kLong).to(dtype);
      EXPECT_TRUE(at::equal(output, expected)) << dtype;
    }
  }
}

TEST_F(Collectives, AReduceScatterWhoseOutputAliasesItsInputElsewhereIsRefused) {
  auto input = blank(size * 7 + 1);
  for (int64_t begin = 0; begin + 7 <= input.numel(); ++begin) {
    if (begin == rank * 7 || begin >= size * 7) continue;
    try {
      comm.reduce_scatter(
          input.narrow(0, begin, 7), input.narrow(0, 0, 7 * size), Reduction::sum());
      ADD_FAILURE() << "element " << begin;
    } catch (const c10::ValueError& error) {
      EXPECT_NE(std::string(error.what()).find("only this rank's own part"), std::string::npos);
    }
  }
}

TEST_F(Collectives, ReduceScatterWorksInPlaceAndInManyBlocks) {
  const int64_t count = size > 16 ? 1003 : 1'000'003;  // several blocks, and a rest
  auto input = mine(size * count);
  auto own = input.narrow(0, rank * count, count);
  comm.reduce_scatter(own, input, Reduction::sum()).synchronize();
  const auto expected =
      joined(comm, size * count, at::kFloat, Reduction::sum()).narrow(0, rank * count, count);
  EXPECT_TRUE(near(own, expected, comm));
}

TEST_F(Collectives, ReduceScatterMovesSeveralBuffersAtOnce) {
  std::vector<Transfer> transfers;
  const std::vector<int64_t> counts{3, 0, size > 16 ? 3007 : 300'007, 64};
  for (const int64_t count : counts)
    transfers.push_back({blank(count), mine(size * count, at::kFloat, count)});
  comm.reduce_scatter(transfers, Reduction::mean()).synchronize();
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t count = counts[i];
    const auto expected = joined(comm, size * count, at::kFloat, Reduction::mean(), count);
    EXPECT_TRUE(near(transfers[i].output, expected.narrow(0, rank * count, count), comm)) << count;
  }
}

TEST_F(Collectives, AllReduceJoinsSmallAndLarge) {
  for (const int64_t count : {1, 5, 1000, 500'009}) {
    for (const auto dtype : floating_dtypes()) {
      auto tensor = mine(count, dtype);
      comm.all_reduce(tensor, Reduction::mean()).synchronize();
      EXPECT_TRUE(near(tensor, joined(comm, count, dtype, Reduction::mean()), comm))
          << dtype << " " << count;
    }
  }
}

TEST_F(Collectives, AllReduceJoinsSeveralTensorsAtOnce) {
  std::vector<at::Tensor> tensors{
      mine(3), mine(70'001, at::kFloat, 1), mine(0), mine(16, at::kFloat, 2)};
  comm.all_reduce(tensors, Reduction::scaled_sum(0.5)).synchronize();
  EXPECT_TRUE(near(tensors[0], joined(comm, 3, at::kFloat, Reduction::scaled_sum(0.5)), comm));
  EXPECT_TRUE(
      near(tensors[1], joined(comm, 70'001, at::kFloat, Reduction::scaled_sum(0.5), 1), comm));
  EXPECT_TRUE(near(tensors[3], joined(comm, 16, at::kFloat, Reduction::scaled_sum(0.5), 2), comm));
}

TEST_F(Collectives, AScaledSumIsScaledOnOneRankToo) {
  // A peer stopped reducing on axes of one rank, and with it scaling.
  auto tensor = mine(8);
  comm.all_reduce(tensor, Reduction::scaled_sum(3)).synchronize();
  EXPECT_TRUE(near(tensor, joined(comm, 8, at::kFloat, Reduction::scaled_sum(3)), comm));
}

TEST_F(Collectives, BroadcastSendsFromEveryRoot) {
  for (int64_t root = 0; root < std::min<int64_t>(size, 8); ++root) {
    for (const auto dtype : {at::kFloat, at::kShort, at::kFloat8_e4m3fn}) {
      for (const int64_t count : {1, 3'000'001}) {
        auto tensor = mine(count, dtype);
        comm.broadcast(tensor, root).synchronize();
        EXPECT_TRUE(same(tensor, contribution(seen(comm, root), count, dtype)))
            << dtype << " from " << root;
      }
    }
  }
}

TEST_F(Collectives, AllToAllExchangesEqualParts) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kShort}) {
    auto output = blank(size * 9, dtype);
    comm.all_to_all(output, mine(size * 9, dtype)).synchronize();
    for (int64_t k = 0; k < std::min<int64_t>(size, 8); ++k) {
      // An emulated rank hears from each peer what it would send it.
      const bool emulated = comm.backend() == "emulated";
      const auto theirs = contribution(seen(comm, k), size * 9, dtype);
      const auto expected = theirs.narrow(0, (emulated ? k : rank) * 9, 9);
      EXPECT_TRUE(same(output.narrow(0, k * 9, 9), expected)) << dtype << " from " << k;
    }
  }
}

TEST_F(Collectives, AllToAllExchangesUnequalParts) {
  if (comm.backend() ==
      "emulated") {  // both sides are this rank: the splits must mirror each other
    auto output = blank(size);
    comm.all_to_all(
            output, mine(size), std::vector<int64_t>(static_cast<size_t>(size), 1),
            std::vector<int64_t>(static_cast<size_t>(size), 1))
        .synchronize();
    EXPECT_TRUE(same(output, mine(size)));
    return;
  }
  // From rank a to rank b travel (a + 2b) % 4 elements.
  const auto count = [](int64_t from, int64_t to) { return (from + 2 * to) % 4; };
  std::vector<int64_t> outgoing, incoming;
  int64_t sent = 0, received = 0;
  for (int64_t k = 0; k < size; ++k) {
    outgoing.push_back(count(rank, k));
    incoming.push_back(count(k, rank));
    sent += outgoing.back();
    received += incoming.back();
  }
  auto output = blank(received);
  comm.all_to_all(output, mine(sent), incoming, outgoing).synchronize();
  int64_t at = 0;
  for (int64_t k = 0; k < size; ++k) {
    int64_t before = 0, total = 0;
    for (int64_t other = 0; other < size; ++other) {
      if (other < rank) before += count(k, other);
      total += count(k, other);
    }
    const auto theirs = contribution(k, total, at::kFloat).narrow(0, before, count(k, rank));
    EXPECT_TRUE(same(output.narrow(0, at, count(k, rank)), theirs)) << "from rank " << k;
    at += count(k, rank);
  }
}

TEST_F(Collectives, MessagesGoRoundARing) {
  if (size == 1) {
    EXPECT_THROW(comm.send(mine(3), 0), c10::ValueError);
    return;
  }
  const int64_t next = (rank + 1) % size;
  const int64_t previous = (rank + size - 1) % size;
  auto first = blank(100'000);
  auto second = blank(7);
  // Even ranks send first; an odd number of ranks leaves two even neighbours, which works as well
  // since the chain starts at rank 1.
  const auto send = [&] {
    comm.send(mine(100'000), next).synchronize();
    comm.send(mine(7, at::kFloat, 1), next).synchronize();
  };
  const auto receive = [&] {
    comm.receive(first, previous).synchronize();
    comm.receive(second, previous).synchronize();
  };
  if (rank % 2 == 0) {
    send();
    receive();
  } else {
    receive();
    send();
  }
  if (comm.backend() == "emulated") {  // nobody sent anything
    EXPECT_EQ(first.abs().sum().item<float>() + second.abs().sum().item<float>(), 0);
    return;
  }
  EXPECT_TRUE(same(first, contribution(previous, 100'000, at::kFloat)));
  EXPECT_TRUE(same(second, contribution(previous, 7, at::kFloat, 1)));
}

TEST_F(Collectives, ABarrierEndsOnAllRanks) {
  for (int i = 0; i < 20; ++i) comm.barrier().synchronize();
  if (comm.backend() == "emulated") return;
  // The others wait for the last one.
  const auto begin = std::chrono::steady_clock::now();
  if (rank == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  comm.barrier().synchronize();
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(150));
}

TEST_F(Collectives, ManyOperationsOfOneCommunicatorKeepTheirOrder) {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<Work> works;
  for (int64_t i = 0; i < 50; ++i) {
    outputs.push_back(blank(size * (i + 1)));
    inputs.push_back(mine(i + 1, at::kFloat, i));
    works.push_back(comm.all_gather(outputs.back(), inputs.back()));
  }
  works.back().synchronize();
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_TRUE(works[static_cast<size_t>(i)].done());
    EXPECT_TRUE(same(outputs[static_cast<size_t>(i)], gathered(i + 1, at::kFloat, i)));
  }
}

TEST_F(Collectives, SplitsRunSideBySide) {
  // Two communicators over all ranks and one over those of this rank's parity, all in flight at
  // once.
  std::vector<int64_t> all, alike;
  for (int64_t k = 0; k < size; ++k) {
    all.push_back(k);
    if (k % 2 == rank % 2) alike.push_back(k);
  }
  auto gathers = comm.split(all, "gathers");
  auto reduces = comm.split(all, "reduces");
  auto parity = comm.split(alike, "parity");
  EXPECT_EQ(parity->size(), std::ssize(alike));
  EXPECT_EQ(alike[static_cast<size_t>(parity->rank())], rank);
  const int64_t each = size > 16 ? 500 : 50'000;
  for (int64_t i = 0; i < 5; ++i) {
    const auto to_gather = mine(each, at::kFloat, i);
    const auto to_reduce = mine(size * each, at::kFloat, i);
    auto gathered_to = blank(size * each);
    auto reduced_to = blank(each);
    auto summed = mine(1000, at::kFloat, i);
    // Odd ranks start them in another order: communicators must not wait for one another. (Between
    // GPUs that is up to the hardware, so there all keep one order.)
    const bool reversed = rank % 2 == 1 && (comm.backend() == "mpi" || comm.backend() == "tcp");
    Work a, b, c;
    if (!reversed) a = gathers->all_gather(gathered_to, to_gather);
    b = reduces->reduce_scatter(reduced_to, to_reduce, Reduction::sum());
    c = parity->all_reduce(summed, Reduction::sum());
    if (reversed) a = gathers->all_gather(gathered_to, to_gather);
    c.synchronize();
    b.synchronize();
    a.synchronize();
    EXPECT_TRUE(same(gathered_to, gathered(each, at::kFloat, i)));
    const auto all_sums = joined(comm, size * each, at::kFloat, Reduction::sum(), i);
    EXPECT_TRUE(near(reduced_to, all_sums.narrow(0, rank * each, each), comm));
    auto expected = at::zeros({1000}, on_device(at::kDouble));
    for (const int64_t k : alike) {
      if (seen(comm, k) == k) expected += contribution(k, 1000, at::kFloat, i).to(at::kDouble);
    }
    EXPECT_TRUE(near(summed, expected, comm));
  }
}

TEST_F(Collectives, RefuseWhatCannotWorkAndNameIt) {
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  auto full = blank(size * 8);
  const auto says = [&](const std::string& text, const char* word) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' should say '" << word << "'";
    EXPECT_NE(text.find("rank " + std::to_string(rank) + ","), std::string::npos) << text;
    EXPECT_NE(text.find("[comm." + comm.backend() + "]"), std::string::npos) << text;
  };
  says(refusal([&] { comm.all_gather(full, mine(7)); }), "all_gather");
  says(refusal([&] { comm.all_gather(full, mine(8, at::kDouble)); }), "dtype");
  says(refusal([&] { comm.all_gather(full, full.view({-1, 2}).select(1, 0)); }), "contiguous");
  says(refusal([&] { comm.broadcast(full, size); }), "there is no rank");
  says(refusal([&] { comm.split({rank, rank}, "twice"); }), "distinct");
  says(refusal([&] { comm.all_to_all(blank(size * 2), mine(size * 2), {1}, {}); }), "splits");
  if (size > 1) says(refusal([&] { comm.split({(rank + 1) % size}, "others"); }), "not among");
  says(refusal([&] { comm.all_reduce(mine(4, at::kInt), Reduction::mean()); }), "can't be reduced");
  const auto fp8 = mine(4, at::kFloat8_e4m3fn);
  says(refusal([&] { comm.all_reduce(fp8, Reduction::sum()); }), "can't be reduced");
  std::vector<int64_t> keeps_one(static_cast<size_t>(size), 1), keeps_none = keeps_one;
  keeps_none[static_cast<size_t>(rank)] = 0;
  says(
      refusal([&] { comm.all_to_all(blank(size), mine(size - 1), keeps_one, keeps_none); }),
      "keeps 0 elements for itself but expects 1");
}

}  // namespace
}  // namespace sherd
