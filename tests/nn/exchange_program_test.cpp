// SPDX-License-Identifier: Apache-2.0
// What programs know of exchanges, against what the communicators of an emulated world see.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "comm/emulated/recorded_calls.h"
#include "nn/exchanging_model.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

World emulated(at::DeviceType device = at::kCPU) {
  return World::emulated({.rank = 1, .size = 6, .device = device});
}

void train_once(ExchangingModel& model, const World& world) {
  model(exchanged_rows(world)).backward();
  torch::optim::SGD optimizer(parameters(model), torch::optim::SGDOptions(0.1));
  step(model, optimizer);
}

/// The exchanges of all calls in the order in which a step makes them: forwards from the first
/// call to the last, backwards the other way.
CallExchanges in_order_of_step(const Program& program) {
  CallExchanges result;
  const auto& calls = program.exchanges();
  const auto add = [&](const CallExchanges& call, bool is_forward) {
    for (const auto& one : call) {
      if ((one.pass == ExchangePass::forward) == is_forward) result.push_back(one);
    }
  };
  for (const auto& call : calls) add(call, true);
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) add(*call, false);
  return result;
}

std::vector<RecordedCall> exchanged(const World& world, bool forget) {
  auto calls = recorded_calls(world.communicator(), forget);
  std::erase_if(
      calls, [](const RecordedCall& call) { return call.communicator != "exchange test"; });
  return calls;
}

void expect_alike(const CallExchanges& known, const std::vector<RecordedCall>& calls) {
  ASSERT_EQ(known.size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(collective_of(known[i].kind), calls[i].collective) << i;
    EXPECT_EQ(known[i].bytes, calls[i].bytes) << i << ": " << to_text(known[i]);
    EXPECT_EQ(known[i].ranks, calls[i].ranks) << i;
  }
}

TEST(ExchangeProgram, KnowsWhatTheCommunicatorSees) {
  for (const bool recomputes : {false, true}) {
    SCOPED_TRACE(recomputes ? "recomputed" : "kept");
    const auto world = emulated();
    auto model = exchanging_model(world, recomputes, 3);
    recorded_calls(world.communicator(), /*forget=*/true);
    EXPECT_TRUE(program(model).exchanges().empty());
    for (int i = 0; i < 3; ++i) {
      train_once(model, world);
      const auto known = in_order_of_step(program(model));
      EXPECT_EQ(known.size(), recomputes ? 12u : 8u);
      expect_alike(known, exchanged(world, /*forget=*/true));
    }
    const auto along = program(model).traffic().exchanges.at("tp");
    EXPECT_EQ(along.calls, recomputes ? 12 : 8);
    EXPECT_EQ(along.bytes, along.calls * 3 * 6 * kExchangedDim * 4);
  }
}

TEST(ExchangeProgram, HasThemInTheirUnitsAndPasses) {
  const auto world = emulated();
  auto model = exchanging_model(world, /*recomputes=*/true, 3);
  train_once(model, world);
  const auto known = program(model);
  using enum ExchangeKind;
  using enum ExchangePass;
  const int64_t bytes = 3 * 6 * kExchangedDim * 4;
  const auto spec = [&](ExchangeKind kind, ExchangePass pass) {
    return ExchangeSpec{kind, pass, "tp", "test", 3, bytes, false};
  };
  const CallExchanges block{spec(gather_rows, forward),   spec(scatter_sum, forward),
                            spec(gather_rows, recompute), spec(scatter_sum, recompute),
                            spec(gather_rows, backward),  spec(scatter_sum, backward)};
  ASSERT_EQ(known.exchanges().size(), 3u);
  size_t position = 0;
  for (const auto& event : known.order()) {
    if (!event.enter) continue;
    const bool is_block =
        known.units()[static_cast<size_t>(event.unit)].name.rfind("block", 0) == 0;
    EXPECT_EQ(known.exchanges()[position], is_block ? block : CallExchanges()) << position;
    ++position;
  }
  const auto text = known.to_text();
  EXPECT_NE(text.find("exchange   gather_rows along tp (3 ranks) for test"), std::string::npos)
      << text;
  EXPECT_NE(text.find(", recomputed"), std::string::npos) << text;
}

TEST(ExchangeProgram, OfADryRunIsThatOfTheRun) {
  for (const bool recomputes : {false, true}) {
    const auto world = emulated();
    auto model = exchanging_model(world, recomputes, 3);
    train_once(model, world);
    const auto meta = emulated(at::kMeta);
    auto dry = exchanging_model(meta, recomputes, 3);
    dry(exchanged_rows(meta)).backward();
    ASSERT_FALSE(program(dry).exchanges().empty());
    EXPECT_EQ(program(dry).exchanges(), program(model).exchanges());
    EXPECT_EQ(program(dry).fingerprint(), program(model).fingerprint());
  }
}

TEST(ExchangeProgram, StaysWithAnotherNumberOfMicroBatches) {
  const auto world = emulated();
  auto model = exchanging_model(world, false, 3);
  train_once(model, world);
  const auto before = program(model).exchanges();
  micro_batches(model, 2);
  EXPECT_EQ(program(model).exchanges(), before);
  EXPECT_EQ(program(model).traffic().exchanges.at("tp").calls, 16);
}

TEST(ExchangeProgram, IsThatOfTheFirstTrainingPass) {
  const auto world = emulated();
  auto model = exchanging_model(world, false, 3);
  {
    const at::NoGradGuard no_grad;
    model(exchanged_rows(world));
  }
  EXPECT_TRUE(program(model).exchanges().empty());
  train_once(model, world);
  const auto known = program(model).exchanges();
  EXPECT_FALSE(known.empty());
  model(exchanged_rows(world, 18)).backward();
  EXPECT_EQ(program(model).exchanges(), known);
}

TEST(ExchangeProgram, DoesNotKnowExchangesOutsideOfUnits) {
  const auto world = emulated();
  const Exchange outside(Mesh(world, {{"others", 2}, {"tp", 3}}), "tp", "outside");
  auto model = exchanging_model(world, false, 3);
  const auto loss = model(outside.gather_rows(exchanged_rows(world), 0));
  outside.sum_numbers(loss);
  loss.backward();
  for (const auto& one : in_order_of_step(program(model))) EXPECT_EQ(one.purpose, "test");
  EXPECT_EQ(program(model).traffic().exchanges.at("tp").calls, 8);
}

TEST(ExchangeProgram, CountsThatDependOnRoutingHaveTheirMean) {
  const std::vector<int64_t> uneven{3, 2, 1}, even{2, 2, 2};
  const auto route = [&](const Exchange& ranks, const at::Tensor& rows) {
    const auto counts =
        ranks.exchange_counts(at::full({3, 2}, 1, rows.options().dtype(at::kLong)), 6);
    const auto there = ranks.all_to_all(rows, uneven, even, rows.size(0));
    const auto back = ranks.all_to_all(there, even, uneven, rows.size(0));
    return back + ranks.sum_numbers(rows) + static_cast<double>(counts.received.numel());
  };
  const auto known = [&](at::DeviceType device) {
    const auto world = emulated(device);
    auto model = exchanging_model(world, false, 3);
    for (auto& block : model->blocks) block->function = route;
    model(exchanged_rows(world)).backward();
    return in_order_of_step(program(model));
  };
  using enum ExchangeKind;
  constexpr auto forward = ExchangePass::forward;
  const auto all = known(at::kCPU);
  EXPECT_EQ(known(at::kMeta), all);
  ASSERT_EQ(all.size(), 12u);
  EXPECT_EQ(all[0], (ExchangeSpec{exchange_counts, forward, "tp", "test", 3, 48, false}));
  const int64_t bytes = 6 * kExchangedDim * 4;
  for (const size_t i : {1, 2, 5, 6, 8, 9, 10, 11}) {
    EXPECT_EQ(all[i].kind, all_to_all) << i;
    EXPECT_EQ(all[i].bytes, bytes) << i;
    EXPECT_TRUE(all[i].routed) << i;
  }
  EXPECT_EQ(all[3], (ExchangeSpec{sum_numbers, forward, "tp", "test", 3, bytes, false}));
}

}  // namespace
}  // namespace sherd::testing
