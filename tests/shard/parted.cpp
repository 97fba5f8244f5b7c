// SPDX-License-Identifier: Apache-2.0
#include "shard/parted.h"

#include "sherd/shard/fully_shard.h"

namespace sherd::testing {
namespace {

at::Tensor make(const std::string& name, const Share& held) {
  const auto whole = parted_cut(name, {}).shape;
  const auto values = torch::randn(whole) * 0.3;
  const auto cut = parted_cut(name, held);
  std::vector<at::Tensor> pieces;
  for (const auto& [begin, end] : cut.ranges) {
    pieces.push_back(values.narrow(cut.dim, begin, end - begin));
  }
  return torch::cat(pieces, cut.dim).contiguous();
}

/// What a forward computes with.
at::Tensor use(
    const std::string& name, const at::Tensor& parameter, const Share& held, const Share& used) {
  if (held.count == used.count) return parameter;
  const auto cut = parted_cut(name, used);
  std::vector<at::Tensor> pieces;
  for (const auto& [begin, end] : cut.ranges) {
    pieces.push_back(parameter.narrow(cut.dim, begin, end - begin));
  }
  return torch::cat(pieces, cut.dim).contiguous();
}

/// The mesh whose axes are the data-parallel ones and `part`.
Mesh grid_of(const Division& division) {
  const int64_t rest = test_world().size() / division.parts;
  if (!division.two_axes) return shared_mesh({{"dp", rest}, {"part", division.parts}});
  return shared_mesh({{"dp_outer", 2}, {"dp", rest / 2}, {"part", division.parts}});
}

}  // namespace

const std::vector<std::string>& parted_names() {
  static const std::vector<std::string> names{"qkv", "experts", "rows", "columns", "cube"};
  return names;
}

Cut parted_cut(const std::string& name, const Share& share) {
  const auto [count, index] = share;
  const auto range = [&](int64_t first, int64_t size) {
    return IndexRange{first + size / count * index, first + size / count * (index + 1)};
  };
  if (name.ends_with("qkv")) return {{48, 6}, 0, {range(0, 24), range(24, 12), range(36, 12)}};
  if (name.ends_with("experts")) return {{12, 2, 6}, 0, {range(0, 12)}};
  if (name.ends_with("rows")) return {{12, 6}, 0, {range(0, 12)}};
  if (name.ends_with("columns")) return {{6, 12}, 1, {range(0, 12)}};
  return {{2, 3, 24}, 2, {range(0, 12), range(12, 12)}};
}

MixerImpl::MixerImpl(const Share& of_parameters, const Share& of_forward)
    : held(of_parameters), used(of_forward) {
  qkv = register_parameter("qkv", make("qkv", held));
  experts = register_parameter("experts", make("experts", held));
  scale = register_parameter("scale", torch::randn({6}) * 0.1 + 1);
}

at::Tensor MixerImpl::forward(const at::Tensor& x) {
  const auto h = x * scale;
  const auto mixed = torch::matmul(h, use("qkv", qkv, held, used).t());
  const auto routed =
      torch::matmul(h.unsqueeze(0), use("experts", experts, held, used).transpose(1, 2));
  return h + torch::tanh(mixed).mean(1, true) + torch::sin(routed).mean(0).sum(1, true);
}

FeedImpl::FeedImpl(const Share& of_parameters, const Share& of_forward)
    : held(of_parameters), used(of_forward) {
  rows = register_parameter("rows", make("rows", held));
  columns = register_parameter("columns", make("columns", held));
  cube = register_parameter("cube", make("cube", held));
  bias = register_parameter("bias", torch::randn({7}) * 0.1);
}

at::Tensor FeedImpl::forward(const at::Tensor& x) {
  const auto hidden = torch::tanh(torch::matmul(x, use("rows", rows, held, used).t()));
  const auto y = torch::matmul(hidden, use("columns", columns, held, used).t());
  const auto waves = torch::cos(use("cube", cube, held, used) * x.mean()).mean();
  return x + y + waves + bias.sum();
}

PartedImpl::PartedImpl(const Share& held, const Share& used) {
  mixer = register_module("mixer", Mixer(held, used));
  feed = register_module("feed", Feed(held, used));
  head = register_parameter("head", torch::randn({5, 6}) * 0.3);
}

at::Tensor PartedImpl::forward(const at::Tensor& x) {
  return torch::matmul(feed(mixer(x)), head.t()).square().mean();
}

Mesh Division::all() const {
  return mesh_for({.name = "", .two_axes = two_axes});
}

Mesh Division::lines() const {
  return two_axes ? grid_of(*this).sub({"dp_outer", "dp"}) : grid_of(*this).sub({"dp"});
}

std::vector<ParameterRule> Division::rules() const {
  std::vector<ParameterRule> result;
  if (parts == 1) return result;
  for (const auto& name : parted_names()) {
    result.push_back({.match = name, .mesh = lines(), .cut = parted_cut(name, mine())});
  }
  return result;
}

std::vector<Division> divisions_for(const ShardingCase& way) {
  std::vector<Division> result;
  const int64_t ranks = test_world().size();
  for (const int64_t parts : {int64_t{2}, int64_t{3}, int64_t{4}}) {
    if (ranks % (way.two_axes ? 2 * parts : parts) == 0) result.push_back({parts, way.two_axes});
  }
  return result;
}

Parted make_parted(const PartedOptions& options) {
  const auto& division = options.division;
  const auto used = options.used.value_or(division.mine());
  auto model = [&] {
    torch::manual_seed(5);
    if (!options.meta) return Parted(division.mine(), used);
    const MetaDevice meta;
    return Parted(division.mine(), used);
  }();
  if (!options.meta) to_device(*model);
  const UnitOptions all{
      .mesh = division.all(), .placement = options.placement, .precision = options.precision};
  const auto rules = division.rules();
  const auto with = [&](const torch::nn::Module& module) {
    auto result = all;
    for (const auto& rule : rules) {
      if (module.named_parameters().contains(rule.match)) result.rules.push_back(rule);
    }
    return result;
  };
  fully_shard(model->mixer, with(*model->mixer));
  fully_shard(model->feed, with(*model->feed));
  fully_shard(model, all);
  return model;
}

InitialiseOptions parted_values() {
  return {.seed = 11, .values = [](const std::string& name, at::IntArrayRef shape) {
            const auto cut = parted_cut(name, {});
            for (const auto& one : parted_names()) {
              if (name.ends_with(one)) {
                EXPECT_EQ(shape, at::IntArrayRef(cut.shape)) << name;
              }
            }
            if (name.ends_with("bias")) return std::optional(InitialValues::constant(0.25));
            if (name.ends_with("scale")) return std::optional(InitialValues::uniform(0.5, 1.5));
            return std::optional(InitialValues::normal(0, 0.3));
          }};
}

at::Tensor parted_input(int64_t step) {
  return random_input(step, 0, test_world().rank(), {4, 6}).to(test_world().device());
}

}  // namespace sherd::testing
