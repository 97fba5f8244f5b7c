// SPDX-License-Identifier: Apache-2.0
// Every function that takes a model takes it as a module, a pointer or a holder.
#include "sherd/shard/module_ref.h"

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include "files/temporary_folder.h"
#include "shard/diagnostics/recording.h"
#include "shard/failure_fixture.h"
#include "sherd/sherd.h"

namespace sherd::testing {
namespace {

struct OneLayerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return inner(x).sum(); }
  sherd::Linear inner = register_module("inner", sherd::Linear(4, 4));
};
SHERD_MODULE(OneLayer);

UnitOptions alone() {
  const auto world = World::emulated({.size = 1});
  return {.mesh = Mesh(world, {{"dp", 1}})};
}

/// Calls every public function that takes a model or a unit. `backward` runs a forward and a
/// backward.
template <class Model, class Unit>
void call_everything(const Model& model, const Unit& unit, const std::function<void()>& backward) {
  initialise(model, {.seed = 1});
  micro_batches(model, 1);
  watch(model, {});
  AdamW optimizer(model, {});
  AdamW defaults(model);
  torch::optim::SGD sgd(parameters(model), torch::optim::SGDOptions(0.1));
  auto replaced = std::make_unique<Recording>(model);
  Recording recording(model);
  replaced.reset();  // which leaves the later one alone
  backward();
  EXPECT_GT(gradient_norm(model), 0);
  optimizer.step();
  const auto recorded = recording.finish();
  EXPECT_EQ(recorded.units.size(), program(model).units().size());
  EXPECT_FALSE(recorded.timeline.spans.empty());
  backward();
  sherd::step(model, sgd);
  publish(model);
  idle_pass(model);
  sherd::step(model, sgd);
  finish(model);
  EXPECT_EQ(named_parameters(model).size(), full_parameters(model).size());
  edit_parameters(unit, [] {});
  EXPECT_GT(allocated_bytes(model).sum(), 0);
  EXPECT_TRUE(symmetric_report(model).empty());
  EXPECT_TRUE(findings(model).empty());
  EXPECT_EQ(norms(model).size(), 2u);
  EXPECT_EQ(groups(model).size(), 1u);
  expect_error({"[shard.graph]"}, [&] { StepGraph graph(model); });

  TemporaryFolder folder;
  const auto path = folder.path() + "/checkpoint";
  save(model, optimizer, path);
  save(model, &optimizer, path, {});
  save(model, nullptr, path);
  BackgroundSave background;
  EXPECT_GT(background.reserve(model, &optimizer), 0);
  background.begin(model, &optimizer, path);
  background.finish();
  load(model, optimizer, path);
  load(model, &optimizer, path, {});
  load(model, nullptr, path);
  load_elements(
      model, {}, [](const std::string&, int64_t, int64_t count) { return at::zeros({count}); });
  auto call = before_forward(model);
  abandon(call);
}

class ModuleRefTest : public ::testing::Test {
 protected:
  OneLayer make() const {
    const MetaDevice meta;
    return {};
  }
  static std::function<void()> backward_of(OneLayer model) {
    return [model]() mutable { model(at::ones({2, 4})).backward(); };
  }
};

TEST_F(ModuleRefTest, AHolderIsTaken) {
  auto model = make();
  fully_shard(model->inner, alone());
  fully_shard(model, alone());
  call_everything(model, model->inner, backward_of(model));
}

TEST_F(ModuleRefTest, APointerIsTaken) {
  auto model = make();
  const std::shared_ptr<OneLayerImpl> pointer = model.ptr();
  const std::shared_ptr<torch::nn::Module> inner = model->inner.ptr();
  fully_shard(inner, alone());
  fully_shard(pointer, alone());
  call_everything(pointer, inner, backward_of(model));
}

TEST_F(ModuleRefTest, AModuleIsTaken) {
  auto model = make();
  fully_shard(*model->inner, alone());
  fully_shard(*model, alone());
  call_everything(*model, *model->inner, backward_of(model));
}

TEST_F(ModuleRefTest, AHolderOfTorchIsTaken) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4));
  fully_shard(model, alone());
  EXPECT_EQ(parameters(model).size(), 2u);
  AdamW optimizer(model);
  sherd::call(model, at::ones({2, 4})).sum().backward();
  optimizer.step();
}

TEST_F(ModuleRefTest, NoModuleIsAnErrorInWords) {
  const OneLayer empty(nullptr);
  const std::shared_ptr<OneLayerImpl> null;
  expect_error({"[shard]", "null pointer"}, [&] { fully_shard(empty); });
  expect_error({"[shard]", "null pointer"}, [&] { fully_shard(null); });
  expect_error({"[shard]", "null pointer"}, [&] { publish(empty); });
  expect_error({"[shard]", "null pointer"}, [&] { AdamW optimizer(null); });
  OneLayerImpl on_the_stack;
  expect_error({"[shard]", "no std::shared_ptr owns", "OneLayerImpl"}, [&] {
    fully_shard(on_the_stack, alone());
  });
}

}  // namespace
}  // namespace sherd::testing
