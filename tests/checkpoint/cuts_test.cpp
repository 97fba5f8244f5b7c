// SPDX-License-Identifier: Apache-2.0
// Checkpoints of models whose parameters are parts of whole ones: saved under one division of the
// ranks and loaded under others.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "checkpoint/shared_folder.h"
#include "shard/parted.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/checkpoint/inspect.h"

namespace sherd::testing {
namespace {

/// Queries, keys and values are three tensors, and so are the halves of the experts; all else is
/// stored as it is.
std::vector<TensorSlice> slices(const std::string& name, at::IntArrayRef shape) {
  if (name.ends_with("qkv")) {
    EXPECT_EQ(shape, at::IntArrayRef({48, 6}));
    return {{"q", {24, 6}}, {"k", {12, 6}}, {"v", {12, 6}}};
  }
  if (name.ends_with("columns")) {  // in a larger tensor, with the rows
    return {{"joined", {18, 12}, {{0, 6}, {0, 12}}}};
  }
  if (name.ends_with("rows")) return {{"joined", {18, 12}, {{6, 18}, {0, 6}}}};
  if (name.ends_with("experts")) {
    return {{"joined", {18, 12}, {{6, 18}, {6, 12}}}, {"rest", {72}}};
  }
  return {{name, shape.vec()}};
}

struct Trained {
  Parted model;
  AdamW optimizer;

  explicit Trained(const PartedOptions& options)
      : model(make_parted(options)), optimizer(model, {.lr = 0.01}) {}
  double step(int64_t number) {
    auto loss = model(parted_input(number));
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  }
};

/// Rank 0 compares the bytes of all tensors.
void expect_same_files(const std::string& one, const std::string& other) {
  test_world().communicator().barrier().synchronize();
  if (test_world().rank() != 0) return;
  EXPECT_TRUE(compare_checkpoints(one, other).empty());
  verify_checkpoint(other);
  const auto bytes_of = [](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(one)) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const auto name = entry.path().filename();
    EXPECT_TRUE(bytes_of(entry.path()) == bytes_of(std::filesystem::path(other) / name)) << name;
  }
  EXPECT_GE(files, 3) << "model and moments";
}

void expect_same_weights(const NamedTensors& one, const NamedTensors& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].first, other[i].first);
    EXPECT_TRUE(torch::equal(one[i].second, other[i].second)) << one[i].first;
  }
}

/// Divisions with their placements, each loaded from what the one before it has saved.
std::vector<PartedOptions> chain() {
  const auto placed = [](const char* way, int64_t parts) {
    const auto one = way_called(way);
    return PartedOptions{.division = {parts, one.two_axes}, .placement = one.placement};
  };
  if (test_world().size() == 2) {
    return {
        placed("optim_grads_params", 2), placed("optim", 1), placed("no_shard", 2),
        placed("HFSDP", 1)};
  }
  return {placed("optim_grads_params", 4), placed("HFSDP", 2),    placed("optim", 1),
          placed("optim_grads", 2),        placed("no_shard", 2), placed("no_shard", 4),
          placed("both_params", 1)};
}

void expect_chain(const Precision& precision, const SaveOptions& options) {
  const SharedFolder folder;
  const int64_t parts = test_world().size();
  const Share mine{parts, test_world().rank()};
  Trained saved({.used = mine, .precision = precision});
  for (int64_t i = 0; i < 3; ++i) saved.step(i);
  const auto first = folder.file("first");
  save(saved.model, saved.optimizer, first, options);
  const auto weights = full_parameters(saved.model);
  auto before = first;
  int64_t number = 0;
  for (auto one : chain()) {
    SCOPED_TRACE(c10::str(number, ": ", one.division.parts, " parts"));
    one.precision = precision;
    one.meta = number % 2 == 1;
    if (one.division.parts == 1) one.used = mine;
    Trained loaded(one);
    load(loaded.model, loaded.optimizer, before, {.slices = options.slices});
    expect_same_weights(full_parameters(loaded.model), weights);
    before = folder.file(std::to_string(number++));
    if (number % 2 == 0) {
      save(loaded.model, loaded.optimizer, before, options);
    } else {
      BackgroundSave background;
      background.begin(loaded.model, &loaded.optimizer, before, options);
      background.finish();
    }
    expect_same_files(first, before);
  }
  // Those that compute alike go on alike.
  Trained whole({.used = mine, .precision = precision});
  Trained cut({.division = {parts}, .precision = precision});
  for (auto* model : {&whole, &cut}) {
    load(model->model, model->optimizer, before, {.slices = options.slices});
  }
  for (int64_t i = 3; i < 5; ++i) {
    const double loss = saved.step(i);
    EXPECT_EQ(whole.step(i), loss);
    EXPECT_EQ(cut.step(i), loss);
  }
  expect_same_weights(full_parameters(whole.model), full_parameters(saved.model));
  expect_same_weights(full_parameters(cut.model), full_parameters(saved.model));
}

TEST(CheckpointCuts, WhatIsSavedUnderOneDivisionIsLoadedUnderOthers) {
  expect_chain({}, {});
}

TEST(CheckpointCuts, PartsOfPackedParametersGoToTheirTensors) {
  expect_chain(Precision::recipe("bf16_o2"), {.slices = slices, .export_dtype = torch::kBFloat16});
}

TEST(CheckpointCuts, Fp8IsExportedWithTheScalesOfTheWhole) {
  expect_chain({}, {.export_fp8 = {"*qkv", "*rows", "*columns"}});
}

TEST(CheckpointCuts, ElementsAreReadByTheirPlaceInTheWhole) {
  for (const int64_t parts : {int64_t{1}, test_world().size()}) {
    auto model = make_parted({.division = {parts}, .used = Share{parts, 0}, .meta = true});
    load_elements(model, {}, [](const std::string&, int64_t begin, int64_t count) {
      return torch::arange(begin, begin + count, torch::kDouble);
    });
    for (const auto& [name, value] : full_parameters(model)) {
      const auto expected = torch::arange(value.numel(), value.options()).view_as(value);
      EXPECT_TRUE(torch::equal(value, expected)) << name;
    }
  }
}

}  // namespace
}  // namespace sherd::testing
