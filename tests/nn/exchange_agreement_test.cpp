// SPDX-License-Identifier: Apache-2.0
// Ranks that do not exchange the same get an error that names both sides, soon.
#include <gtest/gtest.h>

#include <chrono>

#include "nn/exchanging_model.h"
#include "ranks/rank_world.h"
#include "shard/failure_fixture.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

using Rows = std::vector<int64_t>;

bool odd_one() {
  return test_world().rank() == 1;
}

at::Tensor loss_of(ExchangingModel& model, int64_t rows = 6) {
  return model(exchanged_rows(test_world(), rows));
}

/// Asserts that every rank gets an error soon that says all of this.
void expect_soon(const std::vector<std::string>& parts, const std::function<void()>& run) {
  if (test_world().size() == 1) return run();
  const auto begin = std::chrono::steady_clock::now();
  expect_error(parts, run);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

/// The same, and that it is about what ranks exchange.
void expect_exchanges_differ(std::vector<std::string> parts, const std::function<void()>& run) {
  parts.insert(
      parts.begin(), {"[shard.agree] rank 0 and rank 1 along 'tp'", "Rank 0: ", "Rank 1: "});
  expect_soon(parts, run);
}

TEST(ExchangeAgreementTest, OtherSizesNameUnitExchangeAndBothShapes) {
  auto model = exchanging_model(test_world());
  model->blocks[1]->function = [](const Exchange& ranks, const at::Tensor& rows) {
    const auto mine = rows.slice(0, 0, odd_one() ? 5 : 6);
    return ranks.gather_rows(mine, 0).sum() + rows;
  };
  expect_exchanges_differ(
      {"exchange 3 of its forward with gradients, in unit 'block1': gather_rows for 'test'",
       "[6, 12]", "[5, 12]"},
      [&] { loss_of(model); });
}

TEST(ExchangeAgreementTest, OtherKindsAndDtypesAreNamed) {
  auto model = exchanging_model(test_world());
  for (auto& block : model->blocks) {
    block->function = [](const Exchange& ranks, const at::Tensor& rows) {
      return odd_one() ? ranks.scatter_sum(ranks.sum_numbers(rows).tile({ranks.size(), 1}), 0)
                       : ranks.scatter_sum(ranks.gather_rows(rows, 0), 0);
    };
  }
  expect_exchanges_differ(
      {"gather_rows for 'test'", "sum_numbers for 'test'"}, [&] { loss_of(model); });
  auto other = exchanging_model(test_world());
  other->blocks[0]->function = [](const Exchange& ranks, const at::Tensor& rows) {
    const auto x = odd_one() ? rows.to(at::kBFloat16) : rows;
    return ranks.scatter_sum(ranks.gather_rows(x, 0), 0).to(at::kFloat);
  };
  expect_exchanges_differ({"Float [6, 12]", "BFloat16 [6, 12]"}, [&] { loss_of(other); });
}

TEST(ExchangeAgreementTest, AnExchangeThatOneRankLeavesOutIsNamed) {
  auto model = exchanging_model(test_world());
  model->blocks[0]->function = [](const Exchange& ranks, const at::Tensor& rows) {
    return odd_one() ? rows : ranks.scatter_sum(ranks.gather_rows(rows, 0), 0);
  };
  expect_exchanges_differ({"in unit 'block0'", "in unit 'block1'"}, [&] { loss_of(model); });
}

TEST(ExchangeAgreementTest, TheLastExchangeThatOneRankLeavesOutIsNamed) {
  auto model = exchanging_model(test_world());
  model->blocks[1]->function = [](const Exchange& ranks, const at::Tensor& rows) {
    return odd_one() ? rows : ranks.scatter_sum(ranks.gather_rows(rows, 0), 0);
  };
  expect_exchanges_differ(
      {"ends its forward with gradients after 2 exchanges", "makes exchange 3"},
      [&] { loss_of(model); });
}

TEST(ExchangeAgreementTest, ABackwardThatOneRankCutsOffIsNamed) {
  auto model = exchanging_model(test_world());
  model->blocks[0]->function = [](const Exchange& ranks, const at::Tensor& rows) {
    const auto result = ranks.scatter_sum(ranks.gather_rows(rows, 0), 0);
    return odd_one() ? result.detach() + rows : result;
  };
  expect_exchanges_differ(
      {"ends its backward after 2 exchanges", "exchange 3 of its backward"},
      [&] { loss_of(model).backward(); });
}

TEST(ExchangeAgreementTest, CountsThatDoNotMatchAreNamed) {
  auto model = exchanging_model(test_world());
  const auto size = static_cast<size_t>(test_world().size());
  model->blocks[0]->function = [&](const Exchange& ranks, const at::Tensor& rows) {
    const Rows ones(size, 1);
    Rows expected = ones;
    if (odd_one()) expected[0] = 2;
    return ranks.all_to_all(rows.slice(0, 0, static_cast<int64_t>(size)), ones, expected).sum() +
           rows;
  };
  expect_soon(
      {"[shard.agree] rank 1 along 'tp'", "in unit 'block0': all_to_all for 'test'",
       "expects 2 rows of rank 0, which sends 1"},
      [&] { loss_of(model); });
}

/// Of all ranks alike: they compare anew.
TEST(ExchangeAgreementTest, AnotherBatchOnAllRanksIsExchanged) {
  auto model = exchanging_model(test_world());
  for (const int64_t rows : {6, 6, 9, 6, 9, 9}) {
    const auto loss = loss_of(model, rows);
    loss.backward();
    {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(loss_of(model, rows).item<double>(), loss.item<double>()) << rows;
    }
    torch::optim::SGD optimizer(parameters(model), torch::optim::SGDOptions(0.1));
    step(model, optimizer);
  }
}

TEST(ExchangeAgreementTest, ProgramsAreTheSameOnAllRanks) {
  if (test_world().size() == 1) return;
  for (const bool recomputes : {false, true}) {
    auto model = exchanging_model(test_world(), recomputes);
    // Ranks of other lines may have other sizes; the program has those of the first.
    const int64_t line = test_world().size() % 2 == 0 ? 2 : test_world().size();
    auto pairs = exchanging_model(test_world(), recomputes, line);
    const int64_t rows = 6 + 2 * (test_world().rank() / line);
    for (int i = 0; i < 2; ++i) {
      for (auto* one : {&model, &pairs}) {
        loss_of(*one, one == &pairs ? rows : 6).backward();
        torch::optim::SGD optimizer(parameters(*one), torch::optim::SGDOptions(0.1));
        step(*one, optimizer);
      }
    }
    const auto found = program(pairs).traffic().exchanges.at("tp");
    EXPECT_EQ(found.calls, recomputes ? 12 : 8);
    EXPECT_EQ(found.bytes, found.calls * line * 6 * kExchangedDim * 4);
  }
}

/// The ranks know each other's exchanges: the odd one compares, the others send. What they leave
/// behind is never joined, so this test is the last.
TEST(ExchangeAgreementTest, WithLaterChangesOfOneRankAllFindOut) {
  if (test_world().size() == 1 || test_world().device().is_cuda()) return;
  auto model = exchanging_model(test_world());
  for (int i = 0; i < 2; ++i) {
    loss_of(model).backward();
    torch::optim::SGD optimizer(parameters(model), torch::optim::SGDOptions(0.1));
    step(model, optimizer);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto text = error_of([&] { loss_of(model, odd_one() ? 9 : 6); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  // The first that finds out names both sides; of several others, some hear of that one instead.
  const bool hears = test_world().size() > 2 && text.find("has given up") != std::string::npos;
  std::vector<std::string> parts{"in unit 'block0'"};
  if (odd_one()) parts.insert(parts.end(), {"makes exchange 1 of its forward", "[9, 12]"});
  if (!odd_one() && !hears) {
    parts.insert(
        parts.end(),
        {"[shard.agree]", "and rank 1 of the world do not exchange the same along 'tp'", "[9, 12]",
         "[6, 12]"});
  }
  expect_error(parts, [&] { throw std::runtime_error(text); });
}

}  // namespace
}  // namespace sherd::testing
