// SPDX-License-Identifier: Apache-2.0
// Ranks that do not do the same: each gets an error that names both sides, and the world goes on.
// What leaves operations behind that other ranks never join is in one_rank_fails_test.py.
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <thread>

#include "shard/failure_fixture.h"

namespace sherd::testing {
namespace {

/// Rank 1 is the odd one; alone in its world a rank agrees with itself.
bool odd_one() {
  return test_world().rank() == 1;
}

FaultyModel make_model(int64_t dim_of_last = 3) {
  torch::manual_seed(4);
  FaultyModel model;
  if (dim_of_last != 3) {
    model->out = model->replace_module("out", torch::nn::Linear(10, dim_of_last));
  }
  to_device(*model);
  return model;
}

UnitOptions flat_options() {
  return {.mesh = mesh_for({})};
}

void shard(FaultyModel& model, const UnitOptions& options, const RootOptions& root = {}) {
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options, root);
}

at::Tensor loss_of(FaultyModel& model) {
  const auto device = test_world().device();
  return model(torch::ones({4, 7}).to(device), torch::zeros({4, 3}).to(device));
}

/// Asserts that every rank gets an error soon that says all of this of both sides.
void expect_words_of_both(
    std::initializer_list<std::string> parts, const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  const auto text = error_of(run);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  if (test_world().size() == 1) {
    EXPECT_EQ(text, "nothing was thrown");
  } else {
    const auto rethrow = [&] { throw std::runtime_error(text); };
    expect_error({"[shard.agree]", "Rank 0: ", "Rank 1: "}, rethrow);
    expect_error(parts, rethrow);
  }
}

/// The same, and that the world still works.
void expect_disagreement(
    std::initializer_list<std::string> parts, const std::function<void()>& run) {
  expect_words_of_both(parts, run);
  auto ones = torch::ones({3}, test_world().device());
  test_world().communicator().all_reduce(ones, Reduction::sum()).synchronize();
  EXPECT_EQ(ones[0].item<int64_t>(), test_world().size());
}

TEST(AgreementTest, DifferentMicroBatchesNameBothNumbers) {
  auto model = make_model();
  shard(model, flat_options());
  micro_batches(model, odd_one() ? 3 : 2);
  expect_disagreement({"micro-batches: 2", "micro-batches: 3"}, [&] { loss_of(model); });
}

TEST(AgreementTest, AParameterThatOneRankFreezesIsNamed) {
  auto model = make_model();
  shard(model, flat_options());
  if (odd_one()) model->blocks[1]->up->weight.set_requires_grad(false);
  expect_disagreement(
      {"frozen since sharding: none", "frozen since sharding: block1.up.weight"},
      [&] { loss_of(model).backward(); });
}

/// Its host is in the middle of the backward when it could know that ranks differ; the others are
/// at the end. What one of them had issued alone, the world would wait for.
TEST(AgreementTest, ASlowRankFindsADifferenceWhereTheOthersDo) {
  auto model = make_model();
  shard(model, flat_options());
  if (odd_one()) model->blocks[1]->up->weight.set_requires_grad(false);
  model->blocks[2]->before = in_backward;
  InBackward::action = [] {
    if (test_world().rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  expect_disagreement({"frozen since sharding: none"}, [&] { loss_of(model).backward(); });
  InBackward::action = nullptr;
  auto next = make_model();
  shard(next, flat_options());
  loss_of(next).backward();
}

TEST(AgreementTest, DifferentOrdersOfShardingNameBothUnits) {
  auto model = make_model();
  const auto options = flat_options();
  for (size_t i = 0; i < 3; ++i) fully_shard(model->blocks[odd_one() ? 2 - i : i], options);
  fully_shard(model, options);
  expect_disagreement({"unit 'block0'", "unit 'block2'"}, [&] { loss_of(model); });
}

TEST(AgreementTest, DifferentUnitsNameBoth) {
  auto model = make_model();
  const auto options = flat_options();
  expect_disagreement({"'FaultyBlock' with", "'FaultyModel' with"}, [&] {
    for (size_t i = 0; i < 3; ++i) {
      if (i != 1 || !odd_one()) fully_shard(model->blocks[i], options);
    }
    fully_shard(model, options);
  });
}

TEST(AgreementTest, DifferentPrefetchDepthsNameBothNumbers) {
  auto model = make_model();
  shard(model, flat_options(), {.prefetch_depth = odd_one() ? 0 : 2});
  expect_disagreement({"prefetch depth: 0", "prefetch depth: 2"}, [&] { loss_of(model); });
}

TEST(AgreementTest, DifferentLossesNameBoth) {
  auto model = make_model();
  shard(model, flat_options(), {.loss = odd_one() ? Loss::sum : Loss::per_token});
  expect_disagreement({"loss: sum", "loss: per token"}, [&] { loss_of(model); });
}

TEST(AgreementTest, DifferentPlacementsNameBoth) {
  using enum Strategy;
  auto model = make_model();
  auto options = flat_options();
  options.placement = Placement(odd_one() ? optim_grads : optim_grads_params);
  shard(model, options);
  expect_disagreement(
      {Placement(optim_grads).to_text(), Placement(optim_grads_params).to_text()},
      [&] { loss_of(model); });
}

TEST(AgreementTest, DifferentShapesNameBoth) {
  auto model = make_model(odd_one() ? 4 : 3);
  expect_disagreement(
      {"out.weight [3 10]", "out.weight [4 10]"}, [&] { shard(model, flat_options()); });
}

TEST(AgreementTest, DifferentDtypesNameBoth) {
  auto model = make_model();
  auto options = flat_options();
  if (odd_one()) options.precision.reduce = torch::kBFloat16;
  shard(model, options);
  expect_disagreement(
      {"Float Float Float BFloat16", "Float Float Float Float"}, [&] { loss_of(model); });
}

TEST(AgreementTest, AUnitThatOnlyOneRankKeepsGatheredIsNamed) {
  auto model = make_model();
  auto options = flat_options();
  options.keep_gathered = odd_one();
  shard(model, options);
  expect_disagreement({"unit 'block0', keeps gathered", "unit 'block0'."}, [&] { loss_of(model); });
}

/// All run the same units, but each finds out about the other only at the end of the first pass.
TEST(AgreementTest, AnotherOrderOfCallsInTheFirstPassNamesTheUnit) {
  auto model = make_model();
  shard(model, flat_options());
  if (odd_one()) std::swap(model->blocks[0], model->blocks[2]);
  expect_disagreement(
      {"calls its units for the first time", "calls unit 'block1' where the program does not"},
      [&] { loss_of(model).backward(); });
}

TEST(AgreementTest, ARecomputeThatOnlyOneRankDoesIsNoticed) {
  auto model = make_model();
  shard(model, flat_options());
  if (odd_one()) model->where = FaultyModelImpl::Recompute::around_blocks;
  expect_disagreement({"'block0'"}, [&] { loss_of(model).backward(); });
}

// On CUDA one rank has begun reductions by then that the other never joins. They can't be taken
// back: the world is lost, and this test comes last.
TEST(AgreementTest, AGradientOfAnInputOnOneRankIsNoBackward) {
  auto model = make_model();
  shard(model, flat_options());
  const auto x = torch::ones({4, 7}).to(test_world().device()).set_requires_grad(true);
  const auto loss = model(x, torch::zeros({4, 3}).to(test_world().device()));
  const auto expect = test_world().device().is_cuda() ? expect_words_of_both : expect_disagreement;
  expect({"a backward as pass", "a backward that reaches no parameter"}, [&] {
    odd_one() ? void(torch::autograd::grad({loss}, {x})) : loss.backward();
  });
}

}  // namespace
}  // namespace sherd::testing
