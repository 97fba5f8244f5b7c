// SPDX-License-Identifier: Apache-2.0
// What autograd lets a training loop do beside a plain backward: gradients of inputs, frozen
// parameters, views that are written, leaves that pass through, inference.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "shard/failure_fixture.h"
#include "shard/twin.h"
#include "sherd/optim/adamw.h"

namespace sherd::testing {
namespace {

/// The same on every model, with a gradient.
at::Tensor leaf_input(at::IntArrayRef shape) {
  return random_input(70, 0, test_world().rank(), shape)
      .to(test_world().device())
      .set_requires_grad(true);
}

at::Tensor target() {
  return random_input(71, 0, test_world().rank(), {4, 3}).to(test_world().device());
}

/// The gradient of the loss with respect to the input, by autograd::grad or by a backward that
/// names its inputs.
at::Tensor input_gradient(FaultyModel& model, bool named_backward) {
  const auto x = leaf_input({4, 7});
  const auto loss = model(x, target());
  if (!named_backward) return torch::autograd::grad({loss}, {x}).front();
  torch::autograd::backward({loss}, {}, /*retain_graph=*/false, /*create_graph=*/false, {x});
  return x.grad();
}

void expect_close(const at::Tensor& one, const at::Tensor& other) {
  ASSERT_TRUE(one.defined() && other.defined());
  EXPECT_LE((one - other).norm().item<double>(), 1e-5 * other.norm().item<double>());
}

TEST(TrapsTest, TheGradientOfAnInputIsNoBackwardOfTheStep) {
  using enum FaultyModelImpl::Recompute;
  for (const auto& way : all_ways()) {
    for (const auto recompute : {nowhere, inside_blocks, around_blocks}) {
      SCOPED_TRACE(c10::str(way.name, ", recompute ", static_cast<int>(recompute)));
      FailureFixture fixture({.way = way, .recompute = recompute});
      fixture.train();
      for (const bool named : {false, true}) {
        expect_close(
            input_gradient(fixture.model, named), input_gradient(fixture.reference, named));
        expect_error({"[shard]", "optimizer.step() after 0 of the 1 backwards"}, [&] {
          step(fixture.model, *fixture.optimizer);
        });
      }
      // Nor one too many, and it adds nothing to the gradients that wait for their update.
      fixture.pass(0);
      input_gradient(fixture.model, /*named_backward=*/false);
      fixture.update();
      fixture.expect_alike();
      fixture.train();
    }
  }
}

TEST(TrapsTest, ABackwardOfSomeParametersLeavesTheOthersAtZero) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way});
    for (auto* each : {&fixture.model, &fixture.twin, &fixture.reference}) {
      const auto loss = fixture.forward(*each);
      auto wanted = (*each)->blocks[1]->parameters();
      torch::autograd::backward({loss}, {}, false, false, wanted);
    }
    for (const auto& [name, weight] : named_parameters(fixture.model)) {
      if (name.starts_with("block1.") || weight.numel() == 0) continue;
      EXPECT_EQ(weight.grad().abs().max().item<float>(), 0) << name;
    }
    EXPECT_GT(gradient_norm(fixture.model), 0);
    step(fixture.model, *fixture.optimizer);
  }
}

TEST(TrapsTest, AModelWithoutTrainableParametersHasAnyNumberOfBackwards) {
  for (const auto& way : all_ways()) {
    for (const bool frozen_later : {false, true}) {
      SCOPED_TRACE(c10::str(way.name, frozen_later ? ", frozen later" : ""));
      FaultyModel model, reference;
      to_device(*model);
      to_device(*reference);
      const auto freeze = [](FaultyModel& one) {
        for (auto& parameter : one->parameters()) parameter.set_requires_grad(false);
      };
      const auto values = reference->named_parameters();
      for (const auto& item : model->named_parameters()) {
        const torch::NoGradGuard no_grad;
        item.value().copy_(torch::linspace(-1, 1, item.value().numel()).view_as(item.value()));
        values[item.key()].copy_(item.value());
      }
      if (!frozen_later) freeze(model);
      for (auto& block : model->blocks) fully_shard(block, options_for(way));
      fully_shard(model, options_for(way));
      freeze(model);
      freeze(reference);
      const auto x = leaf_input({4, 7}), y = leaf_input({4, 7});
      for (int i = 0; i < 3; ++i) {
        model(x, target()).backward();
        reference(y, target()).backward();
      }
      expect_close(x.grad(), y.grad());
      // They are of no step, so an update of something else waits for none.
      if (!frozen_later) step(model, *make_optimizer(Optimizer::sgd, {x}));
    }
  }
}

TEST(TrapsTest, AParameterFrozenLaterIsNotTouchedByTorchsOptimizer) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    Twin twin(options_for(way));
    at::Tensor kept;
    const auto value = [&] {
      for (auto& [name, weight] : full_parameters(twin.model)) {
        if (name == "link1.first.weight") return weight;
      }
      return at::Tensor();
    };
    twin.expect_same(
        [&](Chain& model, int64_t rank, int64_t step) {
          auto& weight = model->links[1]->first->weight;
          if (step == 2 || step == 4) weight.set_requires_grad(step == 4);
          if (model.get() == twin.model.get()) {
            if (step == 2) kept = value();
            if (step == 4) {
              EXPECT_TRUE(torch::equal(value(), kept));
            }
          } else if (!weight.requires_grad()) {
            weight.mutable_grad() = at::Tensor();
          }
          train_once(model, rank, step);
        },
        6);
    EXPECT_FALSE(torch::equal(value(), kept));
  }
}

TEST(TrapsTest, AUnitsOutputThatIsAViewMayBeWrittenInPlace) {
  using enum FaultyModelImpl::Recompute;
  for (const auto& way : all_ways()) {
    for (const auto recompute : {nowhere, inside_blocks, around_blocks}) {
      SCOPED_TRACE(c10::str(way.name, ", recompute ", static_cast<int>(recompute)));
      FailureFixture fixture({.way = way, .recompute = recompute});
      for (auto* each : {&fixture.model, &fixture.twin, &fixture.reference}) {
        (*each)->blocks[0]->after = [](const at::Tensor& x) {
          return x.view({2, 2, 10}).flatten(0, 1).transpose(0, 1);
        };
        (*each)->blocks[1]->before = [](const at::Tensor& x) {
          auto y = x;
          y += torch::linspace(-1, 1, 4, x.options());
          return y.transpose(0, 1);
        };
      }
      fixture.train(3);
    }
  }
}

/// Returns what it is given, and something else.
struct PassImpl : torch::nn::Module {
  PassImpl() { linear = register_module("linear", torch::nn::Linear(5, 5)); }
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& y) {
    return {x, y, linear(x) + y};
  }
  torch::nn::Linear linear{nullptr};
};
SHERD_MODULE(Pass);

TEST(TrapsTest, ATensorMayPassThroughAUnitInEveryStep) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    Pass model;
    to_device(*model);
    fully_shard(model, options_for(way));
    micro_batches(model, 2);
    auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
    const auto leaf = leaf_input({3, 5});
    for (int i = 1; i <= 3; ++i) {
      const auto inner = leaf * 2;  // made once, for both micro-batches
      for (int j = 0; j < 2; ++j) {
        const auto outputs = model(leaf, inner);
        (outputs[0] + outputs[1] + outputs[2]).sum().backward({}, /*retain_graph=*/true);
      }
      step(model, *optimizer);
    }
    EXPECT_TRUE(leaf.grad().defined());
    EXPECT_EQ(torch::autograd::impl::hooks(leaf).size(), 0u);
  }
}

struct WithBufferImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return linear(x) * factors; }
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  at::Tensor factors = register_buffer("factors", torch::arange(4.0));
};
SHERD_MODULE(WithBuffer);

TEST(TrapsTest, BuffersOfAModelThatWasBuiltOnTheCpuMoveToTheDeviceOfTheWorld) {
  WithBuffer model;
  fully_shard(model, options_for({}));
  EXPECT_EQ(model->factors.device(), test_world().device());
  const auto y = model(torch::ones({2, 4}, test_world().device()));
  EXPECT_TRUE(at::equal(model->named_buffers()["factors"].cpu(), torch::arange(4.0)));
  EXPECT_EQ(y.device(), test_world().device());
}

TEST(TrapsTest, InferenceLeavesNothingThatTrainingCannotUse) {
  for (const auto& way : all_ways()) {
    for (const auto memory : {MemoryKind::planned, MemoryKind::eager}) {
      SCOPED_TRACE(c10::str(way.name, memory == MemoryKind::eager ? ", eager" : ""));
      const auto make = [&] {
        torch::manual_seed(3);
        Chain model;
        to_device(*model);
        auto options = options_for(way);
        options.keep_gathered = true;
        options.precision = Precision::recipe("bf16_o2");
        for (auto& link : model->links) fully_shard(link, options);
        fully_shard(model, options, {.memory = memory});
        return model;
      };
      const auto backwards = [](ChainImpl& chain, const at::Tensor& x) {
        auto y = x;
        for (size_t i = 4; i-- > 0;) y = chain.links[i](y);
        return y;
      };
      auto model = make(), twin = make();
      const auto input = chain_input(test_world().rank(), 9);
      std::optional<AdamW> optimizer, twins;
      {
        const c10::InferenceMode inference;
        model(input);
        optimizer.emplace(model);
      }
      twins.emplace(twin);
      for (int64_t i = 0; i < 4; ++i) {
        if (i == 2) {  // another order, in passes without gradients alone
          const c10::InferenceMode inference;
          model->route = backwards;
          model(input);
          model->route = nullptr;
          micro_batches(model, 2);
        }
        if (i == 2) micro_batches(twin, 2);
        for (int64_t j = 0; j <= i / 2; ++j) {
          train_once(model, test_world().rank(), i, j);
          train_once(twin, test_world().rank(), i, j);
        }
        optimizer->step();
        twins->step();
      }
      expect_same_bits(main_weights(*model), main_weights(*twin));
    }
  }
}

}  // namespace
}  // namespace sherd::testing
