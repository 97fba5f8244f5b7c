// SPDX-License-Identifier: Apache-2.0
// Unusual ways through a model: all give the gradients of the unsharded one.
#include <future>

#include "shard/twin.h"
#include "sherd/optim/adamw.h"

namespace sherd::testing {
namespace {

class BehaviourTest : public ::testing::TestWithParam<ShardingCase> {
 protected:
  UnitOptions options() const { return options_for(GetParam()); }
};

/// Of one training pass that changes nothing.
StepTraffic step_traffic(const Chain& model) {
  auto sum = traffic_of(program(model).forward({}));
  sum += traffic_of(program(model).backward({}));
  return sum;
}

TEST_P(BehaviourTest, AForwardOnlyValidationPassBetweenTwoTrainingStepsChangesNothing) {
  Twin twin(options());
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    const auto validate = [&] {
      const torch::NoGradGuard no_grad;
      return model(chain_input(rank, step, 7)).item<double>();
    };
    const double before = validate();
    train_once(model, rank, step);
    EXPECT_EQ(validate(), before);
  });
}

TEST_P(BehaviourTest, TwoForwardsMayComeBeforeTwoBackwards) {
  Twin twin(options());
  micro_batches(twin.model, 2);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    auto first = model(chain_input(rank, step, 0));
    auto second = model(chain_input(rank, step, 1));
    first.backward();
    second.backward();
  });
}

TEST_P(BehaviourTest, OneBackwardMayServeTwoForwards) {
  Twin twin(options());
  micro_batches(twin.model, 2);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    (model(chain_input(rank, step, 0)) + model(chain_input(rank, step, 1))).backward();
  });
}

TEST_P(BehaviourTest, AUnitCalledTwiceInOneForwardAddsItsGradients) {
  Twin twin(options());
  twin.set_route([](ChainImpl& chain, const at::Tensor& x) {
    auto y = chain.links[0](x);
    y = chain.links[1](y);
    y = chain.links[0](y);
    return chain.links[3](chain.links[2](y));
  });
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
}

TEST_P(BehaviourTest, AUnitWithOneUnusedTrainableParameterTrains) {
  Twin twin(options());  // `spare` is never used
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); }, 5);
}

TEST_P(BehaviourTest, AUnitSkippedInOneStepGetsZeroGradients) {
  Twin twin(options());
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        model->route = [step](ChainImpl& chain, const at::Tensor& x) {
          auto y = x;
          for (size_t i = 0; i < chain.links.size(); ++i) {
            if (step != static_cast<int64_t>(i)) y = chain.links[i](y);
          }
          return y;
        };
        train_once(model, rank, step);
      },
      5);
}

TEST_P(BehaviourTest, RanksMayDifferInWhichUnitsRan) {
  Twin twin(options());
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        model->route = [=](ChainImpl& chain, const at::Tensor& x) {
          auto y = x;
          for (size_t i = 0; i < chain.links.size(); ++i) {
            if ((static_cast<int64_t>(i) + rank + step) % 3 != 0) y = chain.links[i](y);
          }
          return y;
        };
        train_once(model, rank, step);
      },
      4);
}

TEST_P(BehaviourTest, AUnitGatheredAheadButNotExecutedTakesTheNewWeightsNextTime) {
  Twin twin(options());
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        // The last unit is gathered ahead in every step, but used in every other one.
        model->route = [=](ChainImpl& chain, const at::Tensor& x) {
          auto y = chain.links[2](chain.links[1](chain.links[0](x)));
          return step % 2 == 0 ? y : chain.links[3](y);
        };
        train_once(model, rank, step);
      },
      4);
}

TEST_P(BehaviourTest, ADetachedBranchGetsNoGradients) {
  Twin twin(options());
  twin.set_route([](ChainImpl& chain, const at::Tensor& x) {
    const auto y = chain.links[0](x);
    const auto aside = chain.links[1](y).detach();
    return chain.links[3](chain.links[2](y) + aside);
  });
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
}

TEST_P(BehaviourTest, ARetainedGraphMayBeUsedTwice) {
  Twin twin(options());
  micro_batches(twin.model, 2);
  twin.expect_same([](Chain& model, int64_t rank, int64_t step) {
    auto loss = model(chain_input(rank, step));
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST_P(BehaviourTest, ARankWithoutDataRunsAnIdlePass) {
  Twin twin(options());
  micro_batches(twin.model, 2);
  const int64_t last = test_world().size() - 1;
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        train_once(model, rank, step);
        // In turn, one rank has no second micro-batch; alone, rank 0 is idle in every second step.
        const bool idle = last == 0 ? step % 2 == 1 : rank == step % (last + 1);
        if (!idle) {
          train_once(model, rank, step, 1);
        } else if (model.get() == twin.model.get()) {
          idle_pass(model);
        }
      },
      4);
}

TEST_P(BehaviourTest, TheVeryFirstPassOfARankMayBeIdle) {
  Twin twin(options(), 4, [](Chain& model, const UnitOptions& given) {
    for (const size_t i : {2u, 0u, 3u, 1u}) fully_shard(model->links[i], given);
    fully_shard(model, given);
  });
  const bool several = test_world().size() > 1;
  // Units run in another order than they were sharded in: an idle rank can't know that yet.
  twin.set_route([](ChainImpl& chain, const at::Tensor& x) {
    auto y = x;
    for (const size_t i : {3u, 0u, 1u, 2u}) y = chain.links[i](y);
    return y;
  });
  twin.expect_same([&](Chain& model, int64_t rank, int64_t step) {
    if (!several || rank != 0 || step > 0) {
      train_once(model, rank, step);
    } else if (model.get() == twin.model.get()) {
      idle_pass(model);
    }
  });
}

TEST_P(BehaviourTest, UnitsMayRunInAnotherOrderThanTheyWereSharded) {
  Twin twin(options(), 4, [](Chain& model, const UnitOptions& given) {
    for (const size_t i : {2u, 0u, 3u, 1u}) fully_shard(model->links[i], given);
    fully_shard(model, given);
  });
  const auto foreseen = step_traffic(twin.model);
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); }, 4);
  EXPECT_EQ(step_traffic(twin.model), foreseen) << "a gather is left where nobody calls any more";
}

TEST_P(BehaviourTest, TheOrderMayChangeLater) {
  Twin twin(options());
  twin.expect_same(
      [](Chain& model, int64_t rank, int64_t step) {
        model->route = [step](ChainImpl& chain, const at::Tensor& x) {
          auto y = x;
          for (size_t i = 0; i < 4; ++i) y = chain.links[step < 2 ? i : 3 - i](y);
          return y;
        };
        train_once(model, rank, step);
      },
      4);
  EXPECT_EQ(step_traffic(twin.model), step_traffic(Twin(options()).model));
}

TEST_P(BehaviourTest, TheOrderMayChangeWhileARankHasNoData) {
  Twin twin(options());
  const int64_t last = test_world().size() - 1;
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        model->route = [step](ChainImpl& chain, const at::Tensor& x) {
          auto y = x;
          for (size_t i = 0; i < 4; ++i) y = chain.links[step % 3 == 1 ? i : 3 - i](y);
          return y;
        };
        // In the very first pass, and in those with a new order.
        const bool idle = step < 3 && rank > 0 && rank == last;
        if (!idle) {
          train_once(model, rank, step);
        } else if (model.get() == twin.model.get()) {
          idle_pass(model);
        }
      },
      4);
}

TEST_P(BehaviourTest, AUnitMayCallItselfWithoutWarning) {
  Twin twin(options());
  twin.set_route([](ChainImpl& chain, const at::Tensor& x) {
    auto& link = chain.links[1];
    link->inside = [&link](const at::Tensor& y) {
      const auto outer = std::exchange(link->inside, nullptr);
      return link(y);
    };
    return chain.links[3](link(chain.links[0](x)));
  });
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
}

TEST_P(BehaviourTest, AModuleRegisteredUnderTwoNamesIsOneUnit) {
  const auto register_again = [](Chain& model) {
    model->register_module("again", model->links[1].ptr());
  };
  Twin twin(options(), 4, Twin::shard_in_order, register_again);
  EXPECT_EQ(program(twin.model).units().size(), 5u);
  EXPECT_EQ(named_parameters(twin.model).size(), 4u * 5 + 3);
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
}

TEST_P(BehaviourTest, AHookOnAParameterSeesItsGradient) {
  Twin twin(options(), 4, Twin::shard_in_order, [](Chain& model) {
    for (auto& link : model->links) {
      link->first->weight.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    }
  });
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
}

TEST_P(BehaviourTest, RecomputeAndUnitsThatOnlySomeRanksCallGoTogether) {
  Twin twin(options());
  twin.expect_same(
      [](Chain& model, int64_t rank, int64_t step) {
        model->route = [=](ChainImpl& chain, const at::Tensor& x) {
          auto y = x;
          for (size_t i = 0; i < chain.links.size(); ++i) {
            if (static_cast<int64_t>(i) == rank % 4) continue;
            y = recompute([&chain, i](const at::Tensor& z) { return chain.links[i](z); }, y);
          }
          return y;
        };
        train_once(model, rank, step);
      },
      4);
}

TEST_P(BehaviourTest, ARecomputeThatOnlyOneRankMakesLater) {
  Twin twin(options());
  const int64_t last = test_world().size() - 1;
  twin.expect_same(
      [&](Chain& model, int64_t rank, int64_t step) {
        // Units 1 and 2 are first called in the third step, by rank 0 alone, while another rank has
        // no data.
        const bool idle = step == 2 && rank > 0 && rank == last;
        model->route = [=](ChainImpl& chain, const at::Tensor& x) {
          auto y = chain.links[0](x);
          if (step >= 2 && rank == 0) {
            y = recompute(
                [&chain](const at::Tensor& z) { return chain.links[2](chain.links[1](z)); }, y);
          }
          return recompute([&chain](const at::Tensor& z) { return chain.links[3](z); }, y);
        };
        if (!idle) {
          const auto loss = model(chain_input(rank, step, 0));
          // On a thread of its own, as autograd does on CUDA.
          std::async(std::launch::async, [&] { loss.backward(); }).get();
        } else if (model.get() == twin.model.get()) {
          idle_pass(model);
        }
      },
      5);
  // Of the root and unit 0 come three visits before unit 1 is entered, and two of unit 1.
  const auto& order = program(twin.model).order();
  EXPECT_NE(order[3].recompute, kNone);
  EXPECT_EQ(order[3].recompute, order[5].recompute);
}

TEST_P(BehaviourTest, AUnitSkippedWithinARecomputeOfTheFirstPass) {
  Twin twin(options());
  twin.expect_same(
      [](Chain& model, int64_t rank, int64_t step) {
        model->route = [=](ChainImpl& chain, const at::Tensor& x) {
          return recompute(
              [&chain, step](const at::Tensor& z) {
                auto y = chain.links[0](z);
                if (step == 2) y = chain.links[1](y);
                return chain.links[3](chain.links[2](y));
              },
              x);
        };
        train_once(model, rank, step);
      },
      4);
}

TEST_P(BehaviourTest, ASumOfLossesIsNotDivided) {
  Twin twin(options(), {.loss = Loss::sum});
  twin.expect_same([&](Chain& model, int64_t rank, int64_t step) {
    // The reference is divided by the ranks afterwards.
    const bool sharded = model.get() == twin.model.get();
    auto loss = model(chain_input(rank, step));
    (sharded ? loss : loss * test_world().size()).backward();
  });
}

TEST_P(BehaviourTest, GatheredParametersCanBeReadUntilTheNextPassOrUpdate) {
  Twin twin(options());
  const auto expect_whole = [&](size_t link) {
    const auto& mine = twin.model->links[link]->first->weight;
    const auto& theirs = twin.reference->links[link]->first->weight;
    EXPECT_TRUE(at::allclose(mine, theirs.to(mine.device()), 1e-5, 1e-6)) << link;
  };
  const auto read = [&] { twin.model->links[1]->first->weight.sum().item<double>(); };
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
  for (const size_t link : {1, 2}) gather(twin.model->links[link]);
  gather(twin.model->links[1]);  // no effect
  for (const size_t link : {1, 2}) expect_whole(link);
  release(twin.model->links[1]);
  EXPECT_THROW(read(), c10::Error);
  expect_whole(2);
  release(twin.model->links[1]);  // no effect
  gather(twin.model->links[1]);
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
  EXPECT_THROW(read(), c10::Error);
  gather(twin.model->links[1]);
  expect_whole(1);
  publish(twin.model);  // as an update does
  EXPECT_THROW(read(), c10::Error);
}

TEST_P(BehaviourTest, AUnitMayPrefetchOthersInItsBackward) {
  Twin twin(options(), 4, [](Chain& model, const UnitOptions& all) {
    for (size_t i = 0; i < model->links.size(); ++i) {
      auto own = all;
      if (i == 3) own.backward_prefetch = {model->links[1].ptr(), model->links[2].ptr()};
      fully_shard(model->links[i], own);
    }
    fully_shard(model, all);
  });
  twin.expect_same([](Chain& m, int64_t rank, int64_t step) { train_once(m, rank, step); });
  EXPECT_NE(program(twin.model).facts().find("in the backward prefetches"), std::string::npos);
}

TEST_P(BehaviourTest, IgnoredParametersStayWholeAndAreNotUpdated) {
  const auto device = test_world().device();
  torch::manual_seed(3);
  Chain model;
  model->to(device);
  {
    const torch::NoGradGuard no_grad;
    model->links[0]->first->weight.add_(test_world().rank());  // sharding makes them equal
  }
  auto own = options();
  own.ignored = {"first.*"};
  for (auto& link : model->links) fully_shard(link, own);
  fully_shard(model, options());
  EXPECT_EQ(named_parameters(model).size(), model->parameters().size() - 2 * model->links.size());
  const auto& weight = model->links[0]->first->weight;
  const auto before = weight.detach().clone();
  auto first = before.clone();
  test_world().communicator().broadcast(first, 0).synchronize();
  EXPECT_TRUE(at::equal(before, first));
  AdamW optimizer(model);
  train_once(model, test_world().rank(), 0);
  EXPECT_TRUE(weight.grad().defined());
  optimizer.step();
  EXPECT_TRUE(at::equal(weight, before));
}

INSTANTIATE_TEST_SUITE_P(Ways, BehaviourTest, ::testing::ValuesIn(all_ways()), [](const auto& way) {
  return way.param.name;
});

}  // namespace
}  // namespace sherd::testing
