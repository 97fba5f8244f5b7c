// SPDX-License-Identifier: Apache-2.0
// edit_parameters: what an edit reaches, and when it is refused.
#include <set>

#include "shard/failure_fixture.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/initialise.h"

namespace sherd::testing {
namespace {

TEST(ErrorsTest, AnEditReachesUnitsThatStayGathered) {
  FailureFixture fixture;
  UnitOptions options{.mesh = mesh_for({}), .keep_gathered = true};
  torch::manual_seed(5);
  FaultyModel model;
  to_device(*model);
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  const auto before = fixture.forward(model).item<float>();  // no backward: the units stay gathered
  edit_parameters(model->blocks[0], [&] {
    for (auto& parameter : model->blocks[0]->parameters()) parameter.zero_();
  });
  EXPECT_NE(fixture.forward(model).item<float>(), before);
}

TEST(ErrorsTest, AnEditKeepsDigitsThatModelWeightsDoNotHave) {
  FaultyModel model;
  to_device(*model);
  UnitOptions options{.mesh = mesh_for({}), .precision = Precision::recipe("bf16_o2")};
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options);
  constexpr double kFine = 1 + 0x1p-12;  // 1 in bf16
  std::set<std::string> names;
  edit_parameters(model->blocks[1], [&] {
    for (auto& item : model->blocks[1]->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), at::kFloat);
      names.insert("block1." + item.key());
      item.value().fill_(kFine);
    }
  });
  for (const auto& parameter : model->blocks[1]->parameters()) {
    EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(names.size(), model->blocks[1]->parameters().size());
  size_t found = 0;
  for (const auto& [name, weight] : full_parameters(model)) {
    const bool all = weight.eq(kFine).all().item<bool>();
    EXPECT_EQ(all, names.contains(name)) << name;
    found += all;
  }
  EXPECT_EQ(found, names.size());
}

TEST(ErrorsTest, ParametersAreNotEditedInTheMiddleOfAStep) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way, .micro_batches = 2});
    fixture.train();
    const auto edit = [&] { edit_parameters(fixture.model->blocks[1], [] { FAIL(); }); };
    for (int64_t done = 1; done <= 2; ++done) {
      fixture.pass(done - 1);
      expect_error({"[shard]", "edit_parameters", "'block1'", "in the middle of a step"}, edit);
    }
    fixture.update();
    fixture.expect_alike();
    fixture.train();
  }
}

TEST(ErrorsTest, ParametersAreNotEditedInsideAPass) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way});
    fixture.train();
    const auto edit = [&] { edit_parameters(fixture.model->blocks[2], [] { FAIL(); }); };
    fixture.model->blocks[1]->before = [&](const at::Tensor& x) {
      edit();
      return x;
    };
    expect_error({"[shard]", "edit_parameters", "in the forward", "between passes"}, [&] {
      fixture.forward();
    });
    fixture.model->blocks[1]->before = in_backward;
    InBackward::action = edit;
    auto loss = fixture.forward();
    expect_error({"[shard]", "edit_parameters", "in the backward", "between passes"}, [&] {
      loss.backward();
    });
    fixture.model->blocks[1]->before = nullptr;
    InBackward::action = nullptr;
    fixture.expect_resting();
    fixture.train();
  }
}

TEST(ErrorsTest, AnEditThatThrowsKeepsNothing) {
  for (const auto& way : all_ways()) {
    SCOPED_TRACE(way.name);
    FailureFixture fixture({.way = way});
    fixture.train();
    expect_error({"a mistake in the edit"}, [&] {
      edit_parameters(fixture.model->blocks[1], [&] {
        fixture.model->blocks[1]->up->weight.zero_();
        throw std::runtime_error("a mistake in the edit");
      });
    });
    fixture.expect_resting();
    fixture.expect_alike();
    fixture.train();
  }
}

TEST(ErrorsTest, AnEditThatThrowsReleasesAUnitThatWasGathered) {
  FailureFixture fixture;
  fixture.train();
  auto& block = fixture.model->blocks[1];
  gather(block);
  expect_error({"a mistake in the edit"}, [&] {
    edit_parameters(block, [] { throw std::runtime_error("a mistake in the edit"); });
  });
  fixture.expect_resting();
  gather(block);
  EXPECT_GT(block->up->weight.abs().sum().item<float>(), 0);
  release(block);
  fixture.train();
}

}  // namespace
}  // namespace sherd::testing
