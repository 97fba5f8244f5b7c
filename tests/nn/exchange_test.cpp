// SPDX-License-Identifier: Apache-2.0
// Exchanges against the same thing done with the tensors of all ranks on each rank.
#include "sherd/nn/exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <numeric>

#include "comm/emulated/recorded_calls.h"
#include "kernels/fp8/encode.h"
#include "ranks/rank_world.h"
#include "sherd/nn/recompute.h"

namespace sherd::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Counts = std::vector<int64_t>;

class ExchangeTest : public ::testing::Test {
 protected:
  const int64_t size = test_world().size();
  const int64_t rank = test_world().rank();
  Mesh mesh{test_world(), {{"tp", size}}};
  Exchange exchange{mesh, "tp", "test"};

  /// Values of one rank, the same wherever they are asked for.
  static at::Tensor values(at::IntArrayRef shape, int64_t of_rank, int64_t salt = 0) {
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * salt + of_rank));
    return at::randn(shape, generator, at::kDouble);
  }

  /// What the ranks' functions do together: from the inputs of all to the results of all.
  using Together = std::function<Tensors(const Tensors&)>;
  using Alone = std::function<at::Tensor(const at::Tensor&)>;

  /// Asserts that `alone` on each rank gives what `together` says, and the gradient of the sum of
  /// the ranks' losses. `shape` may depend on the rank.
  void expect_alike(
      const std::function<Counts(int64_t)>& shape,
      const Alone& alone,
      const Together& together,
      at::ScalarType dtype) const {
    Tensors wanted_inputs;
    for (int64_t r = 0; r < size; ++r) {
      wanted_inputs.push_back(
          values(shape(r), r).to(dtype).to(at::kDouble).set_requires_grad(true));
    }
    const auto results = together(wanted_inputs);
    const auto weight_of = [&](int64_t r) {
      return values(results[static_cast<size_t>(r)].sizes(), r, 1).to(dtype);
    };
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int64_t r = 0; r < size; ++r) {
      loss = loss + (results[static_cast<size_t>(r)] * weight_of(r).to(at::kDouble)).sum();
    }
    loss.backward();

    const auto mine = static_cast<size_t>(rank);
    const auto device = test_world().device();
    const auto x = wanted_inputs[mine].detach().to(dtype).to(device).set_requires_grad(true);
    const auto y = alone(x);
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_EQ(y.scalar_type(), dtype);
    expect_rounded(y, results[mine]);
    torch::autograd::backward({y}, {weight_of(rank).to(device)});
    expect_rounded(x.grad(), wanted_inputs[mine].grad());
  }

  /// Sums over ranks are rounded once, over nccl at each rank.
  void expect_rounded(const at::Tensor& found, const at::Tensor& wanted) const {
    ASSERT_TRUE(found.defined());
    ASSERT_EQ(found.sizes(), wanted.sizes());
    if (found.numel() == 0) return;
    const auto dtype = found.scalar_type();
    const double step = dtype == at::kBFloat16 ? 1.0 / 128 : dtype == at::kFloat ? 1e-6 : 1e-14;
    const auto error = (found.detach().cpu().to(at::kDouble) - wanted.detach()).abs().max();
    EXPECT_LE(
        error.item<double>(), step * static_cast<double>(size) * wanted.abs().max().item<double>())
        << dtype;
  }

  /// Runs `check` for the dtypes that have gradients.
  static void for_dtypes(const std::function<void(at::ScalarType)>& check) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(c10::toString(dtype));
      check(dtype);
    }
  }
};

TEST_F(ExchangeTest, GatherRowsJoinsAndItsGradientsAreSums) {
  for_dtypes([&](at::ScalarType dtype) {
    for (const int64_t dim : {0, 1, 2, -1, -3}) {
      expect_alike(
          [](int64_t) {
            return Counts{2, 3, 4};
          },
          [&](const at::Tensor& x) { return exchange.gather_rows(x, dim); },
          [&](const Tensors& all) { return Tensors(static_cast<size_t>(size), at::cat(all, dim)); },
          dtype);
    }
  });
}

TEST_F(ExchangeTest, ScatterSumAddsAndItsGradientsAreGathered) {
  for_dtypes([&](at::ScalarType dtype) {
    for (const int64_t dim : {0, 1, 2, -2}) {
      expect_alike(
          [&](int64_t) {
            return Counts{2 * size, 3 * size, size};
          },
          [&](const at::Tensor& x) { return exchange.scatter_sum(x, dim); },
          [&](const Tensors& all) { return at::stack(all).sum(0).chunk(size, dim); }, dtype);
    }
  });
}

/// From rank a to rank b travel (2a + b + 1) % 3 rows: some pairs exchange nothing.
int64_t rows_between(int64_t from, int64_t to) {
  return (2 * from + to + 1) % 3;
}

Counts counts_of(int64_t size, const std::function<int64_t(int64_t)>& count) {
  Counts result;
  for (int64_t k = 0; k < size; ++k) result.push_back(count(k));
  return result;
}

/// What the ranks' all-to-alls of rows give them.
Tensors all_to_all_together(const Tensors& all, int64_t size) {
  std::vector<Tensors> parts;  // by sender
  for (int64_t from = 0; from < size; ++from) {
    parts.push_back(all[static_cast<size_t>(from)].split_with_sizes(
        counts_of(size, [&](int64_t to) { return rows_between(from, to); })));
  }
  Tensors results;
  for (size_t to = 0; to < all.size(); ++to) {
    Tensors arrived;
    for (const auto& sender : parts) arrived.push_back(sender[to]);
    results.push_back(at::cat(arrived));
  }
  return results;
}

TEST_F(ExchangeTest, AllToAllMovesAsManyRowsAsItIsTold) {
  const auto sent = counts_of(size, [&](int64_t to) { return rows_between(rank, to); });
  const auto received = counts_of(size, [&](int64_t from) { return rows_between(from, rank); });
  for_dtypes([&](at::ScalarType dtype) {
    expect_alike(
        [&](int64_t from) {
          int64_t rows = 0;
          for (int64_t to = 0; to < size; ++to) rows += rows_between(from, to);
          return Counts{rows, 2, 3};
        },
        [&](const at::Tensor& x) { return exchange.all_to_all(x, sent, received); },
        [&](const Tensors& all) { return all_to_all_together(all, size); }, dtype);
  });
}

TEST_F(ExchangeTest, AllToAllDimsTurnsACutAlongOneDimIntoACutAlongAnother) {
  for (const auto& [split, join] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 2}, {-1, 0}}) {
    SCOPED_TRACE(c10::str(split, " to ", join));
    for_dtypes([&](at::ScalarType dtype) {
      expect_alike(
          [&](int64_t) {
            return Counts{2 * size, size, 3 * size};
          },
          [&](const at::Tensor& x) { return exchange.all_to_all_dims(x, split, join); },
          [&](const Tensors& all) {
            Tensors results;
            for (int64_t to = 0; to < size; ++to) {
              Tensors arrived;
              for (const auto& x : all)
                arrived.push_back(x.chunk(size, split)[static_cast<size_t>(to)]);
              results.push_back(at::cat(arrived, join));
            }
            return results;
          },
          dtype);
    });
  }
}

TEST_F(ExchangeTest, IntegersAreMovedWithoutGradients) {
  const auto device = test_world().device();
  for (const auto dtype : {at::kInt, at::kLong, at::kByte}) {
    const auto of_rank = [&](int64_t r) { return (at::arange(6) + 10 * r).to(dtype).view({3, 2}); };
    Tensors all;
    for (int64_t r = 0; r < size; ++r) all.push_back(of_rank(r));
    const auto x = of_rank(rank).to(device);
    const auto gathered = exchange.gather_rows(x, 1);
    EXPECT_TRUE(at::equal(gathered.cpu(), at::cat(all, 1)));
    EXPECT_FALSE(gathered.requires_grad());
    const auto swapped = exchange.all_to_all_dims(gathered, 1, 0);
    EXPECT_TRUE(at::equal(swapped.cpu(), of_rank(rank).repeat({size, 1})));
  }
}

TEST_F(ExchangeTest, RowsInFp8ArriveWithTheirScalesBitByBit) {
  const auto rows_of = [&](int64_t r) {
    return encode_rows(values({6, 32}, r).to(at::kFloat), Scaling::row);
  };
  Tensors bytes, scales;
  for (int64_t r = 0; r < size; ++r) {
    const auto rows = rows_of(r);
    bytes.push_back(rows.values.view(at::kByte));
    scales.push_back(rows.scales);
  }
  const auto device = test_world().device();
  const auto mine = rows_of(rank);
  const Tensors sent{mine.values.to(device), mine.scales.to(device)};
  for (int64_t dim : {0, 1}) {
    if (dim == 1 && scales[0].dim() == 1) continue;
    const auto found = exchange.gather_rows_together(sent, dim);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].scalar_type(), at::kFloat8_e4m3fn);
    EXPECT_TRUE(at::equal(found[0].cpu().view(at::kByte), at::cat(bytes, dim)));
    EXPECT_TRUE(at::equal(found[1].cpu(), at::cat(scales, dim)));
  }
  EXPECT_TRUE(exchange.gather_rows_together({}, 0).empty());
  // Each rank's first row goes to rank 0, and so on.
  if (size > 6) return;
  const auto ones = Counts(static_cast<size_t>(size), 1);
  const auto part = sent[0].slice(0, 0, size);
  const auto moved = exchange.all_to_all(part, ones, ones);
  Tensors wanted;
  for (const auto& of_rank : bytes) wanted.push_back(of_rank.slice(0, rank, rank + 1));
  EXPECT_TRUE(at::equal(moved.cpu().view(at::kByte), at::cat(wanted)));
}

TEST_F(ExchangeTest, SumNumbersAddsAndNoGradientFlows) {
  const auto device = test_world().device();
  auto x = (at::arange(6, at::kFloat).view({2, 3}) * (rank + 1)).to(device).t();
  x.set_requires_grad(true);
  const auto sum = exchange.sum_numbers(x);
  const auto ranks = static_cast<double>(size * (size + 1)) / 2;
  EXPECT_TRUE(at::equal(sum.cpu(), (at::arange(6, at::kFloat).view({2, 3}) * ranks).t()));
  EXPECT_FALSE(sum.requires_grad());
  const auto counts = exchange.sum_numbers(at::full({2}, rank, at::kLong).to(device));
  EXPECT_EQ(counts[1].item<int64_t>(), size * (size - 1) / 2);
  EXPECT_EQ(
      exchange.sum_numbers(at::ones({}, at::kDouble).to(device)).item<double>(),
      static_cast<double>(size));
}

TEST_F(ExchangeTest, CountsArriveWithTheirSumsByRank) {
  // Two experts a rank; from rank a to expert e of rank b go (a + b + e) % 3 rows.
  const auto count = [](int64_t from, int64_t to) {
    return Counts{(from + to) % 3, (from + to + 1) % 3};
  };
  Counts sent, received, sent_rows, received_rows;
  for (int64_t k = 0; k < size; ++k) {
    const auto to = count(rank, k), from = count(k, rank);
    sent.insert(sent.end(), to.begin(), to.end());
    received.insert(received.end(), from.begin(), from.end());
    sent_rows.push_back(to[0] + to[1]);
    received_rows.push_back(from[0] + from[1]);
  }
  for (const auto dtype : {at::kLong, at::kInt}) {
    const auto found = exchange.exchange_counts(
        at::tensor(sent, at::kLong).view({size, 2}).to(dtype).to(test_world().device()));
    EXPECT_TRUE(at::equal(found.received.cpu(), at::tensor(received, at::kLong).view({size, 2})));
    EXPECT_EQ(found.sent_rows, sent_rows);
    EXPECT_EQ(found.received_rows, received_rows);
  }
}

TEST_F(ExchangeTest, ResultsMayBeWrittenInPlaceAndInputsMayBeViews) {
  if (size == 1) return;  // the result is the input
  const auto device = test_world().device();
  for (const int64_t dim : {0, 1}) {
    auto x = values({4, 6}, rank).to(device).set_requires_grad(true);
    auto y = exchange.gather_rows(x.t(), dim);
    y.mul_(2);
    y.sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), at::full_like(x, 2.0 * static_cast<double>(size)))) << dim;
  }
}

TEST_F(ExchangeTest, ARecomputeExchangesAgainAndHasTheSameGradients) {
  const auto device = test_world().device();
  Tensors gradients;
  for (const bool recomputes : {false, true}) {
    auto x = values({size, 3}, rank).to(device).set_requires_grad(true);
    const auto layer = [&](const at::Tensor& in) {
      const auto all = exchange.gather_rows(in.sin(), 0);
      return exchange.scatter_sum(all * all, 0).cos();
    };
    const auto y = recomputes ? recompute(layer, x) : layer(x);
    (y * values(y.sizes(), rank, 2).to(device)).sum().backward();
    gradients.push_back(x.grad());
  }
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

TEST_F(ExchangeTest, ALossThatDoesNotUseAResultLeavesTheOtherRanksTheirGradients) {
  auto x = values({2, 3}, rank).to(test_world().device()).set_requires_grad(true);
  const auto y = exchange.gather_rows(x, 0);
  (y * (rank == 0 ? 0.0 : 1.0)).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, static_cast<double>(size - 1))));
}

TEST_F(ExchangeTest, RanksOfOtherLinesAreApart) {
  if (size % 2 != 0) return;
  const Mesh grid(test_world(), {{"dp", size / 2}, {"tp", 2}});
  const Exchange pair(grid, "tp", "pair"), column(grid, "dp", "column");
  EXPECT_EQ(pair.rank(), rank % 2);
  EXPECT_EQ(column.rank(), rank / 2);
  EXPECT_EQ(column.size(), size / 2);
  const auto mine = at::full({1}, rank, at::kLong).to(test_world().device());
  const int64_t first = rank / 2 * 2;
  EXPECT_TRUE(at::equal(pair.gather_rows(mine, 0).cpu(), at::arange(first, first + 2)));
  EXPECT_TRUE(at::equal(column.gather_rows(mine, 0).cpu(), at::arange(rank % 2, size, 2)));
}

TEST_F(ExchangeTest, AlongOneRankTheResultIsTheInput) {
  const Mesh flat(test_world(), {{"dp", size}, {"tp", 1}});
  const Exchange alone(flat, "tp", "alone");
  const auto x = at::ones({2, 3}).set_requires_grad(true);
  EXPECT_TRUE(alone.gather_rows(x, 1).is_same(x));
  EXPECT_TRUE(alone.scatter_sum(x, 1).is_same(x));
  EXPECT_TRUE(alone.all_to_all(x, Counts{2}, Counts{2}).is_same(x));
  EXPECT_TRUE(alone.all_to_all_dims(x, 0, 1).is_same(x));
  EXPECT_TRUE(at::equal(alone.sum_numbers(x), x));
  EXPECT_EQ(alone.exchange_counts(at::tensor({3, 4}).view({1, 2})).received_rows, Counts{7});
}

TEST_F(ExchangeTest, OnTheMetaDeviceThereAreShapesAndNothingIsSent) {
  const auto world = World::emulated({.rank = 1, .size = 4});
  const Exchange four(Mesh(world, {{"tp", 4}}), "tp", "meta");
  recorded_calls(world.communicator(), /*forget=*/true);
  const auto x = at::empty({8, 4, 12}, at::TensorOptions(at::kBFloat16).device(at::kMeta))
                     .set_requires_grad(true);
  const auto gathered = four.gather_rows(x, 1);
  EXPECT_EQ(gathered.sizes(), (Counts{8, 16, 12}));
  EXPECT_EQ(four.scatter_sum(x, 0).sizes(), (Counts{2, 4, 12}));
  EXPECT_EQ(four.all_to_all(x, Counts{2, 2, 2, 2}, Counts{1, 2, 0, 6}).sizes(), (Counts{9, 4, 12}));
  EXPECT_EQ(four.all_to_all_dims(x, 2, 0).sizes(), (Counts{32, 4, 3}));
  EXPECT_EQ(four.sum_numbers(x).sizes(), x.sizes());
  gathered.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  const auto counts = at::empty({4, 2}, at::TensorOptions(at::kLong).device(at::kMeta));
  EXPECT_THROW(four.exchange_counts(counts), c10::ValueError);
  const auto found = four.exchange_counts(counts, 10);
  EXPECT_EQ(found.received.sizes(), counts.sizes());
  EXPECT_EQ(found.sent_rows, (Counts{3, 3, 2, 2}));
  EXPECT_EQ(found.received_rows, found.sent_rows);
  EXPECT_EQ(four.gather_rows_together({x, counts}, 0)[1].sizes(), (Counts{16, 2}));
  EXPECT_TRUE(recorded_calls(world.communicator()).empty());
}

TEST_F(ExchangeTest, InAnEmulatedWorldTheOperationsAreThoseOfTheCommunicator) {
  const auto world = World::emulated({.rank = 1, .size = 4});
  const Exchange four(Mesh(world, {{"tp", 4}}), "tp", "experts");
  recorded_calls(world.communicator(), /*forget=*/true);
  auto x = at::ones({8, 6}).set_requires_grad(true);
  four.scatter_sum(four.gather_rows(x, 1), 0).sum().backward();
  const auto calls = recorded_calls(world.communicator());
  ASSERT_EQ(calls.size(), 4u);
  const std::vector<Collective> kinds{
      Collective::all_gather, Collective::reduce_scatter, Collective::all_gather,
      Collective::reduce_scatter};
  for (size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(calls[i], (RecordedCall{kinds[i], "exchange experts", 4, 4 * 8 * 6 * 4, at::kFloat}))
        << i;
  }
}

TEST_F(ExchangeTest, ArgumentsThatDontFitAreErrorsWithTheRemedy) {
  const auto refused = [&](const std::string& text, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << text;
    } catch (const c10::ValueError& error) {
      const std::string what = error.what_without_backtrace();
      EXPECT_EQ(what.rfind("[nn] ", 0), 0u) << what;
      EXPECT_NE(what.find(text), std::string::npos) << what;
    }
  };
  const auto x = at::ones({size + 1, 3}, test_world().device());
  refused("gather_rows of 'test' along 'tp': dim 2 of", [&] { exchange.gather_rows(x, 2); });
  refused("has no purpose", [&] { Exchange(mesh, "tp", ""); });
  refused("is undefined", [&] { exchange.scatter_sum({}, 0); });
  refused("is undefined", [&] { exchange.sum_numbers({}); });
  refused("give one for each", [&] { exchange.all_to_all(x, Counts{}, Counts{1}); });
  const auto ones = Counts(static_cast<size_t>(size), 1);
  refused("do not add up to the", [&] { exchange.all_to_all(x, ones, ones); });
  refused("they are integers", [&] { exchange.exchange_counts(at::ones({size})); });
  if (size == 1) return;
  refused("use a size that is a multiple of them", [&] { exchange.scatter_sum(x, 0); });
  refused("all_to_all_dims of 'test'", [&] { exchange.all_to_all_dims(x, 0, 1); });
}

TEST_F(ExchangeTest, SecondDerivativesAreRefused) {
  if (size == 1) return;
  const auto x = values({2, 3}, rank).to(test_world().device()).set_requires_grad(true);
  const auto y = exchange.gather_rows(x, 0).sum();
  EXPECT_THROW(
      torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true), c10::Error);
}

}  // namespace
}  // namespace sherd::testing
