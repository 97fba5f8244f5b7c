// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/tensor.h>

#include <filesystem>

#include "checkpoint/safetensors.h"
#include "checkpoint/small_model.h"
#include "files/temporary_folder.h"
#include "shard/failure_fixture.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/checkpoint/inspect.h"

namespace sherd::testing {
namespace {

/// A checkpoint of two tensors, one of them in `dtype`.
std::string two_tensors(const std::string& folder, c10::ScalarType dtype, float last = 2) {
  std::filesystem::create_directory(folder);
  write_safetensors(
      folder + "/model-00001-of-00001.safetensors",
      {{"kept", at::tensor({0.5F})}, {"other", at::tensor({1.0F, last}).to(dtype)}});
  seal_checkpoint(folder, {{"step", 1}}, std::nullopt);
  return folder;
}

TEST(CheckpointCompare, AFolderWithAForeignTensorFileIsNotSealed) {
  const TemporaryFolder place;
  const auto folder = two_tensors(place.file("foreign"), at::kFloat);
  write_safetensors(folder + "/adapter.safetensors", {{"kept", at::tensor({0.5F})}});
  expect_error({"[checkpoint]", "'adapter.safetensors'", "rename or remove it"}, [&] {
    seal_checkpoint(folder, {{"step", 1}}, std::nullopt);
  });
}

TEST(CheckpointCompare, NamesTensorsThatDifferInDtypeAlone) {
  const TemporaryFolder place;
  const auto single = two_tensors(place.file("float"), at::kFloat);
  const auto half = two_tensors(place.file("bfloat16"), at::kBFloat16);
  EXPECT_TRUE(compare_checkpoints(single, single).empty());
  const auto found = compare_checkpoints(single, half);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tensor, "other (main)");
  EXPECT_EQ(found[0].what, "dtype Float and BFloat16");
  EXPECT_EQ(found[0].largest, 0);
}

TEST(CheckpointCompare, SaysHowFarTensorsOfOtherDtypesAreApart) {
  const TemporaryFolder place;
  const auto single = two_tensors(place.file("float"), at::kFloat);
  const auto half = two_tensors(place.file("bfloat16"), at::kBFloat16, 3);
  const auto found = compare_checkpoints(single, half);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "dtype Float and BFloat16");
  EXPECT_EQ(found[0].largest, 1);
}

TEST(CheckpointCompare, NamesModelWeightsThatWereExportedInAnotherDtype) {
  const TemporaryFolder place;
  const auto world = World::emulated({.size = 1});
  const Subject subject(world, {.mesh = Mesh(world, {{"dp", 1}})}, 1);
  const auto plain = place.file("plain"), exported = place.file("exported");
  save(*subject.model, nullptr, plain);
  save(*subject.model, nullptr, exported, {.export_dtype = at::kBFloat16});
  EXPECT_TRUE(compare_checkpoints(exported, exported).empty());
  const auto found = compare_checkpoints(plain, exported);
  bool named = false;
  for (const auto& one : found) {
    EXPECT_EQ(one.what, "dtype Float and BFloat16") << one.tensor;
    named = named || one.tensor == "head.weight (model)";
  }
  EXPECT_TRUE(named);
}

}  // namespace
}  // namespace sherd::testing
