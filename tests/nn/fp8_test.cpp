// SPDX-License-Identifier: Apache-2.0
// Models with weights in fp8 on several ranks: every strategy computes with the encoding of the
// unsharded main weight, and with the same bits as every other.
#include "nn/fp8_encoding.h"
#include "shard/failure_fixture.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/initialise.h"

namespace sherd::testing {
namespace {

struct Fp8Case {
  ShardingCase way;
  std::string recipe;
};

std::vector<Fp8Case> cases() {
  std::vector<Fp8Case> all;
  for (const auto& way : all_ways()) {
    for (const auto& recipe : fp8_recipes()) all.push_back({way, recipe});
  }
  return all;
}

class Fp8Ranks : public ::testing::TestWithParam<Fp8Case> {
 protected:
  UnitOptions options() const { return options_of(GetParam().way, GetParam().recipe); }
};

TEST_P(Fp8Ranks, ProductsReadTheEncodingOfTheUnshardedMainWeight) {
  auto model = fp8_stack();
  shard_fp8(model, options());
  AdamW optimizer(model, {.lr = 1e-2});
  for (int64_t step = 0; step < 3; ++step) {
    std::map<std::string, at::Tensor> mains;
    for (auto& [name, tensor] : full_parameters(model)) mains[name] = tensor;
    std::map<std::string, SeenWeight> seen;
    model->blocks[1]->seen = &seen;
    model(fp8_input(step, test_world().rank())).backward();
    model->blocks[1]->seen = nullptr;
    ASSERT_EQ(seen.size(), 4u);
    for (const auto& [name, found] : seen) {
      const auto wanted = encoded(mains.at("block1." + name), GetParam().recipe);
      const auto what = name + " in step " + std::to_string(step);
      expect_same(found.forward, wanted.forward, what);
      expect_same(found.backward, wanted.backward, what + ", backward");
    }
    optimizer.step();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Fp8Ranks, ::testing::ValuesIn(cases()), [](const auto& one) {
  return one.param.way.name + "_" + one.param.recipe;
});

// ---- strategies ---------------------------------------------------------------------------------

struct Outcome {
  NamedTensors weights;
  std::vector<double> losses;
};

struct Training {
  ShardingCase way;
  std::string recipe;
  bool recomputes = false;
  bool recompute_gate_up = false;
  bool keep_gathered = false;
  MemoryKind memory = MemoryKind::planned;
  int64_t depth = 1;
  bool evaluates = false;
  bool torch_optimizer = false;
};

Outcome train(const Training& how) {
  auto model = fp8_stack();
  auto options = options_of(how.way, how.recipe);
  options.keep_gathered = how.keep_gathered;
  for (auto& block : model->blocks) {
    block->recomputes = how.recomputes;
    block->recompute_gate_up = how.recompute_gate_up;
  }
  shard_fp8(model, options, {.prefetch_depth = how.depth, .memory = how.memory});
  AdamW adamw(model, {.lr = 3e-3, .max_norm = 1});
  auto torchs = make_optimizer(Optimizer::sgd, parameters(model));
  Outcome outcome;
  for (int64_t step = 0; step < 4; ++step) {
    const auto x = fp8_input(step, test_world().rank());
    if (how.evaluates) {
      const at::NoGradGuard no_grad;
      model(x);
    }
    const auto loss = model(x);
    outcome.losses.push_back(loss.item<double>());
    loss.backward();
    how.torch_optimizer ? sherd::step(model, *torchs) : adamw.step();
  }
  outcome.weights = full_parameters(model);
  return outcome;
}

void expect_same_bits(const Outcome& one, const Outcome& other, const std::string& what) {
  EXPECT_EQ(one.losses, other.losses) << what;
  ASSERT_EQ(one.weights.size(), other.weights.size());
  for (size_t i = 0; i < one.weights.size(); ++i) {
    EXPECT_TRUE(at::equal(one.weights[i].second, other.weights[i].second))
        << what << ": " << one.weights[i].first;
  }
}

class Fp8Training : public ::testing::TestWithParam<std::string> {};

TEST_P(Fp8Training, StrategiesHaveTheSameBits) {
  // Ranks are added in another order over two axes; NCCL adds in an order of its own.
  if (test_world().device().is_cuda()) return;
  std::map<bool, std::pair<std::string, Outcome>> first;
  for (const auto& way : all_ways()) {
    auto outcome = train({.way = way, .recipe = GetParam()});
    const auto known = first.find(way.two_axes);
    if (known == first.end()) {
      first[way.two_axes] = {way.name, std::move(outcome)};
      continue;
    }
    expect_same_bits(known->second.second, outcome, known->second.first + " and " + way.name);
  }
}

TEST_P(Fp8Training, WhatSavesMemoryOrTimeChangesNoBits) {
  for (const char* name : {"no_shard", "optim_grads", "optim_grads_params", "HFSDP"}) {
    const Training plain{.way = way_called(name), .recipe = GetParam()};
    const auto reference = train(plain);
    const auto expect = [&](const char* what, auto change) {
      auto other = plain;
      change(other);
      expect_same_bits(reference, train(other), std::string(name) + ", " + what);
    };
    expect("recompute", [](Training& t) { t.recomputes = true; });
    expect("recompute of gate and up", [](Training& t) { t.recompute_gate_up = true; });
    expect("kept gathered", [](Training& t) { t.keep_gathered = true; });
    expect("kept gathered, with evaluation", [](Training& t) {
      t.keep_gathered = t.evaluates = true;
    });
    expect("eager memory", [](Training& t) { t.memory = MemoryKind::eager; });
    expect("no prefetch", [](Training& t) { t.depth = 0; });
    expect("evaluation", [](Training& t) { t.evaluates = true; });
  }
}

TEST_P(Fp8Training, ATorchOptimizersUpdateIsEncodedToo) {
  auto model = fp8_stack();
  shard_fp8(model, options_of(way_called("optim_grads_params"), GetParam()));
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  model(fp8_input(0, test_world().rank())).backward();
  sherd::step(model, *optimizer);
  std::map<std::string, SeenWeight> seen;
  model->blocks[0]->seen = &seen;
  model(fp8_input(1, test_world().rank())).backward();
  for (const auto& [name, main] : full_parameters(model)) {
    if (name.rfind("block0.", 0) != 0 || main.dim() != 2) continue;
    expect_same(seen.at(name.substr(7)).forward, encoded(main, GetParam()).forward, name);
  }
}

TEST_P(Fp8Training, EditsAndInitialValuesAreEncoded) {
  Fp8Stack model{nullptr};
  {
    const MetaDevice meta;
    model = Fp8Stack(2);
  }
  shard_fp8(model, options_of(way_called("optim_grads_params"), GetParam()));
  initialise(model, {.values = [](const std::string&, at::IntArrayRef shape) {
               return shape.size() == 2 ? InitialValues::normal(0, 0.1)
                                        : InitialValues::constant(1);
             }});
  const auto check = [&](const std::string& what) {
    std::map<std::string, SeenWeight> seen;
    model->blocks[1]->seen = &seen;
    const at::NoGradGuard no_grad;
    model(fp8_input(0, 0));
    model->blocks[1]->seen = nullptr;
    for (const auto& [name, main] : full_parameters(model)) {
      if (name.rfind("block1.", 0) != 0 || main.dim() != 2) continue;
      EXPECT_GT(main.abs().max().item<double>(), 0);
      expect_same(
          seen.at(name.substr(7)).forward, encoded(main, GetParam()).forward, what + " " + name);
    }
  };
  check("initialise");
  edit_parameters(model->blocks[1], [&] { model->blocks[1]->down.mul_(-3.7); });
  check("edit_parameters");
}

TEST_P(Fp8Training, AWeightThatIsFrozenLaterKeepsItsBytes) {
  auto model = fp8_stack();
  shard_fp8(model, options_of(way_called("optim_grads_params"), GetParam()));
  AdamW optimizer(model, {.lr = 1e-2});
  const auto pass = [&](int64_t step) {
    model(fp8_input(step, test_world().rank())).backward();
    optimizer.step();
  };
  pass(0);
  model->blocks[0]->out.set_requires_grad(false);
  const auto frozen_weight = [&] {
    for (const auto& [name, main] : full_parameters(model)) {
      if (name == "block0.out") return main;
    }
    return at::Tensor();
  };
  const auto before = frozen_weight();
  pass(1);
  pass(2);
  EXPECT_TRUE(at::equal(frozen_weight(), before));
  std::map<std::string, SeenWeight> seen;
  model->blocks[0]->seen = &seen;
  model(fp8_input(3, test_world().rank())).backward();
  expect_same(seen.at("out").forward, encoded(before, GetParam()).forward, "frozen");
}

TEST_P(Fp8Training, GatheredParametersAreDecoded) {
  for (const char* name : {"optim", "optim_grads_params"}) {
    auto model = fp8_stack();
    shard_fp8(model, options_of(way_called(name), GetParam()));
    std::map<std::string, at::Tensor> mains;
    for (auto& [full, tensor] : full_parameters(model)) mains[full] = tensor;
    auto& block = model->blocks[0];
    gather(block);
    for (const auto& item : block->named_parameters()) {
      if (item.value().dim() != 2) continue;
      const auto wanted =
          decode(encoded(mains.at("block0." + item.key()), GetParam()).forward, at::kBFloat16);
      EXPECT_TRUE(at::equal(item.value(), wanted)) << name << ' ' << item.key();
    }
    release(block);
    expect_error({"'down'", "in fp8", "sherd::linear"}, [&] { block->down.sum(); });
  }
}

TEST_P(Fp8Training, PlannedBytesAreMeasuredBytes) {
  for (const auto& way : all_ways()) {
    auto model = fp8_stack();
    shard_fp8(model, options_of(way, GetParam()));
    AdamW optimizer(model);
    model(fp8_input(0, test_world().rank())).backward();
    optimizer.step();
    const auto planned = program(model).bytes();
    const auto measured = allocated_bytes(model);
    EXPECT_EQ(measured.model_weights, planned.model_weights) << way.name;
    EXPECT_EQ(measured.main_weights, planned.main_weights) << way.name;
    EXPECT_EQ(measured.main_gradients, planned.main_gradients) << way.name;
    EXPECT_EQ(measured.arena, planned.arena) << way.name;
  }
}

TEST_P(Fp8Training, MicroBatchesAndIdlePassesAddUp) {
  // Over mpi a rank without data contributes zeros, and the sum is that of the others, bit for bit.
  auto model = fp8_stack();
  shard_fp8(model, options_of(way_called("optim_grads_params"), GetParam()));
  micro_batches(model, 2);
  AdamW optimizer(model, {.lr = 1e-2});
  const bool idle = test_world().rank() == test_world().size() - 1 && test_world().size() > 1;
  std::vector<double> losses;
  for (int64_t step = 0; step < 3; ++step) {
    model(fp8_input(2 * step, test_world().rank())).backward();
    if (idle) {
      idle_pass(model);
    } else {
      const auto loss = model(fp8_input(2 * step + 1, test_world().rank()));
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    optimizer.step();
  }
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_EQ(optimizer.updates(), 3);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, Fp8Training, ::testing::ValuesIn(fp8_recipes()), [](const auto& one) {
      return one.param;
    });

// ---- errors -------------------------------------------------------------------------------------

struct TorchProductImpl : torch::nn::Module {
  TorchProductImpl() { weight = register_parameter("weight", at::randn({32, 32})); }
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight.t()).sum(); }
  at::Tensor weight;
};
SHERD_MODULE(TorchProduct);

TEST(Fp8Errors, AnOperationThatKnowsNoFp8IsRefusedWithTheWeightsName) {
  TorchProduct model;
  model->to(test_world().device());
  fully_shard(model, options_of(way_called("optim_grads_params"), "fp8"));
  expect_error({"[shard]", "'weight'", "in fp8", "sherd::linear", "precision.keep"}, [&] {
    model(at::ones({4, 32}, at::TensorOptions(test_world().device()).dtype(at::kBFloat16)));
  });
}

TEST(Fp8Errors, DimsThatDoNotFitAreNamed) {
  for (const auto& [recipe, multiple] :
       {std::pair("fp8", "16"), std::pair("fp8_block", "128"), std::pair("mxfp8", "32")}) {
    torch::nn::Linear model(torch::nn::LinearOptions(24, 40).bias(false));
    model->to(test_world().device());
    expect_error(
        {"'weight'", "[40, 24]", std::string("multiples of ") + multiple, "precision.keep"},
        [&] { fully_shard(model, options_of(way_called("optim_grads_params"), recipe)); });
  }
}

TEST(Fp8Errors, AFeedForwardIsInOneRecipe) {
  auto model = fp8_stack(1);
  auto options = options_of(way_called("optim_grads_params"), "fp8");
  options.rules = {{.match = "down", .precision = Precision::recipe("bf16_o2")}};
  fully_shard(model->blocks[0], options);
  auto plain = options_of(way_called("optim_grads_params"), "bf16_o2");
  fully_shard(model, plain);
  expect_error({"[nn] norm_feed_forward", "one recipe for both"}, [&] { model(fp8_input(0, 0)); });
}

}  // namespace
}  // namespace sherd::testing
