// SPDX-License-Identifier: Apache-2.0
// Checkpoints of models whose parameters may be cut only by rows, in blocks or nowhere: saved under
// one such cut and loaded under others, by one rank and by all.
#include "shard/granules.h"
#include "checkpoint/shared_folder.h"
#include "checkpoint/small_model.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd::testing {
namespace {

/// Everything that a checkpoint has of a model, whole.
using Content = std::map<std::string, at::Tensor>;

/// What a world of one makes of a checkpoint: it holds everything, whatever may be cut where.
class Alone {
 public:
  Alone() : world_(World::emulated({.size = 1})) {}

  Content load(const std::string& folder) const {
    auto subject = make(99);
    sherd::load(subject.model, *subject.optimizer, folder);
    return content(subject);
  }
  Content save(const std::string& folder) const {
    auto subject = make(3);
    for (int64_t i = 0; i < 2; ++i) subject.step(i);
    sherd::save(subject.model, *subject.optimizer, folder);
    return content(subject);
  }

 private:
  Subject make(uint64_t seed) const { return {world_, {.mesh = Mesh(world_, {{"dp", 1}})}, seed}; }
  static Content content(const Subject& subject) {
    Content result;
    for (const auto& [name, value] : full_parameters(subject.model)) result[name] = value;
    for (const auto& [name, first, second] : subject.optimizer->moments()) {
      result["first " + name] = first.clone();
      result["second " + name] = second.clone();
    }
    return result;
  }
  World world_;
};

void expect_same(const Content& found, const Content& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(torch::equal(found.at(name).view(-1).cpu(), value.view(-1).cpu())) << name;
  }
}

Subject make_subject(const ShardingCase& way, const GranuleCase& granules, uint64_t seed) {
  UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
  add_granules(options, granules, *SmallModel());
  return {test_world(), options, seed};
}

TEST(CheckpointGranules, WhatIsSavedUnderOneCutIsLoadedUnderEveryOther) {
  const SharedFolder folder;
  const Alone alone;
  const auto& granules = all_granules();
  for (size_t i = 1; i < granules.size(); ++i) {
    const auto& other = granules[(i + 1) % granules.size()];
    // Those that shard most, on one axis and two.
    const auto way = way_called(i % 2 == 0 ? "optim_grads_params" : "both_params");
    const auto other_way = way_called(i % 2 == 0 ? "HFSDP" : "optim");
    SCOPED_TRACE(
        c10::str(granules[i].name, ", ", way.name, " and then ", other.name, ", ", other_way.name));
    const auto first = folder.file("first-" + granules[i].name);
    const auto second = folder.file("second-" + granules[i].name);
    auto saved = make_subject(way, granules[i], 1);
    for (int64_t step = 0; step < 2; ++step) saved.step(step);
    save(saved.model, *saved.optimizer, first);
    const auto expected = alone.load(first);
    const auto weights = full_parameters(saved.model);
    expect_granules(named_parameters(saved.model), weights, granules[i]);
    for (const auto& [name, value] : weights) {
      EXPECT_TRUE(torch::equal(value.cpu(), expected.at(name))) << name;
    }
    auto loaded = make_subject(other_way, other, 2);
    load(loaded.model, *loaded.optimizer, first);
    save(loaded.model, *loaded.optimizer, second);
    expect_same(alone.load(second), expected);
    EXPECT_NEAR(loaded.step(2), saved.step(2), 1e-6);
  }
}

TEST(CheckpointGranules, WhatOneRankSavedIsLoadedUnderEveryCut) {
  const SharedFolder folder;
  const auto path = folder.file("alone");
  Content expected;
  if (test_world().rank() == 0) expected = Alone().save(path);
  test_world().communicator().barrier().synchronize();
  if (test_world().rank() != 0) expected = Alone().load(path);
  for (const auto& granules : all_granules()) {
    SCOPED_TRACE(granules.name);
    auto subject = make_subject({}, granules, 2);
    load(subject.model, *subject.optimizer, path);
    for (const auto& [name, value] : full_parameters(subject.model)) {
      EXPECT_TRUE(torch::equal(value.cpu(), expected.at(name))) << name;
    }
    for (const auto& [name, first, second] : subject.optimizer->moments()) {
      // This rank's elements are some run of the whole.
      for (const auto& [part, whole] :
           {std::pair(first, expected.at("first " + name)),
            std::pair(second, expected.at("second " + name))}) {
        if (part.numel() == 0) continue;
        const auto runs = whole.view(-1).unfold(0, part.numel(), 1);
        EXPECT_TRUE((runs == part.view(-1).cpu()).all(1).any().item<bool>()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace sherd::testing
