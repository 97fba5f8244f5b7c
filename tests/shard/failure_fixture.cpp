// SPDX-License-Identifier: Apache-2.0
#include "shard/failure_fixture.h"

namespace sherd::testing {

FaultyBlockImpl::FaultyBlockImpl(bool recompute)
    : PerceptronBlockImpl(10, ModelOptions{recompute}) {}

at::Tensor FaultyBlockImpl::forward(const at::Tensor& x) {
  const auto y = PerceptronBlockImpl::forward(before ? before(x) : x);
  return after ? after(y) : y;
}

FaultyModelImpl::FaultyModelImpl(Recompute given, int64_t count) : where(given) {
  in = register_module("in", torch::nn::Linear(7, 10));
  for (int64_t i = 0; i < count; ++i) {
    blocks.push_back(register_module(
        "block" + std::to_string(i), FaultyBlock(where == Recompute::inside_blocks)));
  }
  out = register_module("out", torch::nn::Linear(10, 3));
}

at::Tensor FaultyModelImpl::forward(const at::Tensor& x, const at::Tensor& target) {
  const auto all = [this](at::Tensor hidden) {
    for (auto& block : blocks) {
      try {
        hidden = block(hidden);
      } catch (const std::logic_error&) {
        if (!swallow) throw;
      }
    }
    return hidden;
  };
  const auto hidden = torch::tanh(in(x));
  const bool around = where == Recompute::around_blocks;
  return torch::mse_loss(out(around ? recompute(all, hidden) : all(hidden)), target);
}

at::Tensor InBackward::forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
  return x.clone();
}

torch::autograd::variable_list InBackward::backward(
    torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) {
  if (action) action();
  return gradients;
}

at::Tensor in_backward(const at::Tensor& x) {
  return InBackward::apply(x);
}

FailureFixture::FailureFixture(const Options& options)
    : options_(options), model(nullptr), twin(nullptr), reference(nullptr) {
  for (auto* each : {&model, &twin, &reference}) {
    torch::manual_seed(11);
    *each = FaultyModel(options.recompute);
    to_device(**each);
  }
  const UnitOptions shard{.mesh = mesh_for(options.way), .placement = options.way.placement};
  for (auto* each : {&model, &twin}) {
    for (auto& block : (*each)->blocks) fully_shard(block, shard);
    fully_shard(*each, shard, {.loss = options.loss});
    micro_batches(*each, options.micro_batches);
  }
  optimizer = make_optimizer(options.optimizer, parameters(model));
  twin_optimizer = make_optimizer(options.optimizer, parameters(twin));
  reference_optimizer = make_optimizer(options.optimizer, reference->parameters());
}

at::Tensor FailureFixture::forward(FaultyModel& which, int64_t micro_batch) {
  const auto data = [&](int64_t number, at::IntArrayRef shape) {
    return random_input(step_, number, test_world().rank(), shape).to(test_world().device());
  };
  return which(data(micro_batch, {4, 7}), data(micro_batch + 50, {4, 3}));
}

void FailureFixture::pass(int64_t micro_batch) {
  pass_model(micro_batch);
  pass_others(micro_batch);
}

void FailureFixture::pass_others(int64_t micro_batch) {
  forward(twin, micro_batch).backward();
  const int64_t ranks = test_world().size();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto data = [&](int64_t number, at::IntArrayRef shape) {
      return random_input(step_, number, rank, shape).to(test_world().device());
    };
    auto loss = reference(data(micro_batch, {4, 7}), data(micro_batch + 50, {4, 3}));
    (loss / ranks).backward();
  }
}

void FailureFixture::update() {
  StepOptions step;
  if (options_.loss == Loss::per_token) step.tokens = 4;
  sherd::step(model, *optimizer, step);
  sherd::step(twin, *twin_optimizer, step);
  reference_optimizer->step();
  reference_optimizer->zero_grad();
  ++step_;
}

void FailureFixture::train(int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t i = 0; i < options_.micro_batches; ++i) pass(i);
    update();
  }
  expect_alike();
}

void FailureFixture::expect_alike() {
  expect_same_bits(main_weights(*model), main_weights(*twin));
  if (options_.loss != Loss::mean || options_.optimizer != Optimizer::sgd) return;
  expect_weights(full_parameters(model), *reference, 1e-5);
}

bool FailureFixture::gathers() const {
  return way().placement.spreads(Role::parameter).inner == Spread::shard;
}

void FailureFixture::expect_resting() {
  for (const auto& item : model->named_parameters()) {
    EXPECT_FALSE(gradient_target(item.value()).has_value()) << item.key();
    if (!gathers()) continue;
    expect_error({"are released"}, [&] { item.value().sum().item<float>(); });
  }
}

std::vector<at::Tensor> main_weights(const torch::nn::Module& model) {
  std::vector<at::Tensor> copies;
  for (const auto& parameter : parameters(model)) copies.push_back(parameter.detach().clone());
  return copies;
}

void expect_same_bits(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i], other[i])) << "parameter " << i;
  }
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_error(const std::vector<std::string>& parts, const std::function<void()>& run) {
  const auto text = error_of(run);
  std::string missing;
  for (const auto& part : parts) {
    if (text.find(part) == std::string::npos) missing += " \"" + part + '"';
  }
  EXPECT_EQ(missing, "") << "are not in: " << text;
}

}  // namespace sherd::testing
