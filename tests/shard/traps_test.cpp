// SPDX-License-Identifier: Apache-2.0
// Traps that other systems fell into, where no other test is named after them (docs/traps.md).
#include "shard/twin.h"

namespace sherd::testing {
namespace {

void train_alike(Twin& twin) {
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
}

TEST(TrapsTest, OneRankAxesStillReduceGradients) {
  const int64_t ranks = test_world().size();
  for (const auto& [outer, inner] : {std::pair(int64_t{1}, ranks), std::pair(ranks, int64_t{1})}) {
    for (const auto& way : all_ways()) {
      if (!way.two_axes) continue;
      SCOPED_TRACE(c10::str(way.name, " over ", outer, " x ", inner));
      Twin twin(
          {.mesh = shared_mesh({{"dp_outer", outer}, {"dp", inner}}), .placement = way.placement});
      train_alike(twin);
    }
  }
}

TEST(TrapsTest, AFrozenUnitOutsideTheGraphIsGatheredAndReleasedAndChangesNothing) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    Twin twin(options_for(way), 4, Twin::shard_in_order, [](Chain& model) {
      const std::vector<torch::nn::Module*> frozen{
          model->in.get(), model->links[0].get(), model->links[2].get()};
      for (auto* module : frozen) {
        for (auto& weight : module->parameters()) weight.set_requires_grad(false);
      }
    });
    // The first comes before anything that is trained; the third is called beside the graph.
    twin.set_route([](ChainImpl& chain, const at::Tensor& x) {
      const auto y = chain.links[1](chain.links[0](x));
      at::Tensor aside;
      {
        const torch::NoGradGuard no_grad;
        aside = chain.links[2](y);
      }
      return chain.links[3](y + aside);
    });
    train_alike(twin);
  }
}

/// Replicated over one axis and sharded over the other, beside groups that do it the other way
/// round: each has its own order of collectives.
TEST(TrapsTest, TheOuterAxisOfOneGroupMayBeTheInnerOneOfAnother) {
  const int64_t ranks = test_world().size();
  const int64_t outer = ranks % 2 == 0 ? 2 : 1;
  ShardOptions options{.mesh = shared_mesh({{"dp_outer", outer}, {"dp", ranks / outer}})};
  using enum Strategy;
  options.placement = Placement(optim_grads_params, no_shard);
  options.rules = {{.match = "second.*", .axes = DataAxes{.inner = "dp_outer", .outer = "dp"}}};
  Twin twin(options);
  train_alike(twin);
}

/// Half of the ranks have one expert, half another; each is trained by its own ranks' data alone,
/// and the loss is the mean over all ranks.
TEST(TrapsTest, ExpertGradientsAreNotTooLargeByTheSizeOfTheirAxis) {
  const int64_t ranks = test_world().size();
  if (ranks % 2 != 0) return;  // there is no such axis
  const int64_t rank = test_world().rank();
  const Mesh experts = shared_mesh({{"dp", ranks / 2}, {"ep", 2}});
  const auto expert_of = [](int64_t of_rank) { return of_rank % 2; };
  ASSERT_EQ(experts.coordinate("ep"), expert_of(rank));
  const auto make = [&](int64_t expert) {
    torch::manual_seed(3);
    Chain model(2);
    torch::manual_seed(100 + expert);
    model->links[1] = model->replace_module("link1", Link(6));
    to_device(*model);
    return model;
  };
  for (const auto& way : all_ways()) {
    if (way.two_axes) continue;
    SCOPED_TRACE(way.name);
    auto model = make(expert_of(rank));
    const ShardOptions options{.mesh = mesh_for(way), .placement = way.placement};
    fully_shard(model->links[0], options);
    fully_shard(model->links[1], {.mesh = experts, .placement = way.placement});
    fully_shard(model, options);
    auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
    model(chain_input(rank, 0)).backward();
    const double norm = gradient_norm(model);
    step(model, *optimizer);

    auto reference = make(expert_of(rank));
    for (int64_t other = 0; other < ranks; ++other) {
      auto theirs = make(expert_of(other));
      (theirs(chain_input(other, 0)) / ranks).backward();
      const bool same_expert = expert_of(other) == expert_of(rank);
      for (const auto& item : theirs->named_parameters()) {
        if (item.key().starts_with("link1.") && !same_expert) continue;
        auto& gradient = reference->named_parameters()[item.key()].mutable_grad();
        const auto& mine = item.value().grad();
        if (!gradient.defined()) gradient = torch::zeros_like(item.value());
        if (mine.defined()) gradient += mine;
      }
    }
    double squares = 0;
    for (int64_t expert = 0; expert < 2; ++expert) {
      auto part = make(expert);
      for (int64_t other = 0; other < ranks; ++other) {
        auto theirs = make(expert_of(other));
        (theirs(chain_input(other, 0)) / ranks).backward();
        for (const auto& item : theirs->named_parameters()) {
          const bool is_expert = item.key().starts_with("link1.");
          if (is_expert ? expert_of(other) != expert : expert == 1) continue;
          auto& gradient = part->named_parameters()[item.key()].mutable_grad();
          if (!gradient.defined()) gradient = torch::zeros_like(item.value());
          if (item.value().grad().defined()) gradient += item.value().grad();
        }
      }
      for (const auto& weight : part->parameters()) {
        if (weight.grad().defined()) squares += weight.grad().square().sum().item<double>();
      }
    }
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-6 * norm);
    make_optimizer(Optimizer::sgd, reference->parameters())->step();
    expect_weights(full_parameters(model), *reference, 1e-6);
  }
}

}  // namespace
}  // namespace sherd::testing
