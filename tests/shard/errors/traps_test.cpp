// SPDX-License-Identifier: Apache-2.0
// Traps that other systems fell into, where no other test is named after them (docs/traps.md).
#include <chrono>
#include <thread>

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
  UnitOptions options{.mesh = shared_mesh({{"dp_outer", outer}, {"dp", ranks / outer}})};
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
    const UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
    fully_shard(model->links[0], options);
    const auto lines = experts.sub({"dp"});
    fully_shard(
        model->links[1],
        {.mesh = lines,
         .placement = way.placement,
         .rules = rules_cutting_into(2, expert_of(rank), *model->links[1], lines)});
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
    NamedTensors mine;
    for (const auto& [name, weight] : full_parameters(model)) {
      const bool is_expert = name.starts_with("link1.");
      mine.emplace_back(name, is_expert ? part_of(weight, 2, expert_of(rank)) : weight);
    }
    expect_weights(mine, *reference, 1e-6);
  }
}

/// Rank 0 is one unit ahead of the others, which stay in a unit until rank 0 says that it is inside
/// the next one. It can only get there if it does not wait for the collectives that the others
/// have not joined yet.
class OneRankAhead {
 public:
  /// Called inside a unit: rank 0 has come to `place`, the others to the one before it.
  void arrive(int64_t place) {
    if (test_world().rank() == 0) {
      for (int64_t peer = 1; peer < test_world().size(); ++peer) notify(peer, place);
    } else {
      await(place + 1);
    }
  }
  void finish() {
    for (auto& work : works_) work.wait();
    EXPECT_EQ(met_, test_world().rank() == 0 ? 0 : kMeetings);
  }
  static constexpr int64_t kMeetings = 3;

 private:
  void notify(int64_t peer, int64_t place) {
    if (place > kMeetings || place == 0) return;
    works_.push_back(test_world().communicator().send(torch::ones({1}), peer));
  }
  void await(int64_t place) {
    if (place > kMeetings) return;
    works_.push_back(test_world().communicator().receive(torch::zeros({1}), 0));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!late_ && !works_.back().done()) {
      late_ = std::chrono::steady_clock::now() > limit;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    EXPECT_FALSE(late_) << "rank 0 waits for a collective instead of computing unit " << place;
    ++met_;
  }

  std::vector<Work> works_;
  int64_t met_ = 0;
  bool late_ = false;
};

/// Of an order of units, forward or backward, `place` is where one comes.
using Meeting = std::function<void(OneRankAhead& ahead, bool backward, int64_t place)>;

void train_with_one_rank_ahead(const Meeting& meeting) {
  // On CUDA the host always runs ahead: OverlapTest looks at the device's own clock.
  if (test_world().device().is_cuda()) return;
  Twin twin;
  OneRankAhead ahead;
  bool sharded = false;
  for (auto* model : {&twin.model, &twin.reference}) {
    for (size_t i = 0; i < (*model)->links.size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      const auto last = static_cast<int64_t>((*model)->links.size()) - 1;
      (*model)->links[i]->inside = [&, place, last](const at::Tensor& x) {
        if (sharded) meeting(ahead, false, place);
        auto y = x * 1;
        y.register_hook([&, place, last](const at::Tensor&) {
          if (sharded) meeting(ahead, true, last - place);
        });
        return y;
      };
    }
  }
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        sharded = model.get() == twin.model.get() && step == 1;
        train_once(model, rank, step);
        if (sharded) ahead.finish();
        sharded = false;
      },
      2);
}

TEST(TrapsTest, ARankComputesAUnitWhileTheNextOneIsBeingGathered) {
  train_with_one_rank_ahead([](OneRankAhead& ahead, bool backward, int64_t place) {
    if (!backward) ahead.arrive(place);
  });
}

TEST(TrapsTest, ARankComputesAUnitWhileTheGradientsOfTheLastOneAreBeingReduced) {
  train_with_one_rank_ahead([](OneRankAhead& ahead, bool backward, int64_t place) {
    if (backward) ahead.arrive(place);
  });
}

}  // namespace
}  // namespace sherd::testing
