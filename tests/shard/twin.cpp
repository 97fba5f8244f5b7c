// SPDX-License-Identifier: Apache-2.0
#include "shard/twin.h"

namespace sherd::testing {

LinkImpl::LinkImpl(int64_t dim) {
  first = register_module("first", torch::nn::Linear(dim, dim + 3));
  second = register_module("second", torch::nn::Linear(dim + 3, dim));
  spare = register_parameter("spare", torch::randn({3}));
}

at::Tensor LinkImpl::forward(const at::Tensor& x) {
  auto hidden = torch::tanh(first(x));
  const auto before = inside ? inside(x) : x;
  return before + second(hidden);
}

ChainImpl::ChainImpl(int64_t count) {
  in = register_module("in", torch::nn::Linear(5, 6));
  for (int64_t i = 0; i < count; ++i) {
    links.push_back(register_module("link" + std::to_string(i), Link(6)));
  }
  scale = register_parameter("scale", torch::tensor(1.5));
}

at::Tensor ChainImpl::forward(const at::Tensor& x) {
  auto hidden = in(x);
  if (route) {
    hidden = route(*this, hidden);
  } else {
    for (auto& link : links) hidden = link(hidden);
  }
  return (hidden * scale).square().mean();
}

namespace {

std::vector<at::Tensor> trainable(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& [name, parameter] : parameters_without_copies(module)) {
    if (parameter.requires_grad()) result.push_back(parameter);
  }
  return result;
}

}  // namespace

Twin::Twin(
    UnitOptions options,
    int64_t links,
    const std::function<void(Chain&, const UnitOptions&)>& shard,
    const std::function<void(Chain&)>& prepare)
    : model(nullptr), reference(nullptr) {
  torch::manual_seed(3);
  model = Chain(links);
  torch::manual_seed(3);
  reference = Chain(links);
  to_device(*model);
  to_device(*reference);
  if (prepare) prepare(model);
  if (prepare) prepare(reference);
  if (!options.mesh) options.mesh = mesh_for({});
  shard(model, options);
  optimizer_ = make_optimizer(Optimizer::sgd, parameters(model));
  reference_optimizer_ = make_optimizer(Optimizer::sgd, trainable(*reference));
}

Twin::Twin(const UnitOptions& options, const RootOptions& root)
    : Twin(options, 4, [&](Chain& chain, const UnitOptions& given) {
        for (auto& link : chain->links) fully_shard(link, given);
        fully_shard(chain, given, root);
      }) {}

void Twin::shard_in_order(Chain& model, const UnitOptions& options) {
  for (auto& link : model->links) fully_shard(link, options);
  fully_shard(model, options);
}

void Twin::set_route(const ChainImpl::Route& route) {
  model->route = route;
  reference->route = route;
}

void Twin::expect_same(const Flow& flow, int64_t steps) {
  const auto& world = test_world();
  for (int64_t step = 0; step < steps; ++step) {
    for (auto& parameter : trainable(*reference)) {
      parameter.mutable_grad() = torch::zeros_like(parameter);
    }
    for (int64_t rank = 0; rank < world.size(); ++rank) flow(reference, rank, step);
    for (auto& parameter : trainable(*reference)) parameter.mutable_grad() /= world.size();
    flow(model, world.rank(), step);
    sherd::step(model, *optimizer_);
    reference_optimizer_->step();
  }
  expect_weights(full_parameters(model), *reference, 1e-5);
}

at::Tensor chain_input(int64_t rank, int64_t step, int64_t micro_batch) {
  return random_input(step, micro_batch, rank, {3, 5}).to(test_world().device());
}

void train_once(Chain& model, int64_t rank, int64_t step, int64_t micro_batch) {
  model(chain_input(rank, step, micro_batch)).backward();
}

}  // namespace sherd::testing
