// SPDX-License-Identifier: Apache-2.0
#include "train/run_inputs.h"

#include <ATen/ops/amin.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "configuration/setup.h"
#include "data/across_ranks.h"
#include "data/token_check.h"
#include "device/device_memory.h"
#include "forecast/budget.h"
#include "sherd/checkpoint/checkpoint.h"
#include "train/pretrained_files.h"
#include "train/results.h"
#include "train/train.h"

namespace sherd {
namespace {

Dataset checked(Dataset data, const Configuration& configuration, const World& world) {
  check_tokens(data.tokens(), configuration.model.vocab, world);
  return data;
}

/// Throws unless a key that is set names a file.
void check_file(const char* key, const std::optional<std::string>& path) {
  if (!path) return;
  const bool folder = std::filesystem::is_directory(*path);
  TORCH_CHECK_VALUE(
      !folder && std::filesystem::exists(*path), "[train] ", key, " = ", *path,
      folder ? " is a folder: give a file" : ": there is no such file: check the path");
}

/// Throws if train.resume is neither a word nor a folder.
void check_resume(const TrainSection& train) {
  const auto& resume = train.resume;
  if (resume == "auto" || resume == "none") return;
  for (const auto* other : {"", ".part", ".old"}) {  // that a save may leave when it is killed
    if (std::filesystem::is_directory(resume + other)) return;
  }
  std::string there;
  for (const auto& [step, folder] : find_checkpoints(train.out)) {
    there += (there.empty() ? "" : ", ") + folder;
  }
  TORCH_CHECK_VALUE(
      false, "[train] train.resume = \"", resume, "\": there is no such folder: give \"auto\", ",
      "\"none\" or a checkpoint's folder; checkpoints in train.out: ",
      there.empty() ? "none" : there);
}

}  // namespace

Configuration decided(const Configuration& given, const World& world) {
  auto configuration = given;
  configuration.model = resolved(configuration.model);
  if (configuration.memory.budget.empty()) return configuration;
  PlanOptions options;
  options.device = world.device().is_cuda() ? "cuda" : "cpu";
  if (const auto memory = device_memory(world.device())) {
    // What this process has taken already is in the plan, too. All ranks have the least.
    const auto mine = at::tensor({memory->total - memory->used + memory->outside()}, at::kLong)
                          .to(world.device());
    auto all = at::empty({world.size()}, mine.options());
    world.communicator().all_gather(all, mine).synchronize();
    options.free_memory = all.amin().item<int64_t>();
  }
  if (configuration.device.network) options.network = read_network(*configuration.device.network);
  return within_budget(configuration, world.size(), options);
}

void check_inputs(const Configuration& configuration) {
  auto all = configuration;
  all.model = resolved(all.model);
  if (all.model.from) check_weights_of(configuration);
  const auto& data = all.data;
  check_file("data.text", data.text);
  check_file("data.tokens", data.tokens);
  check_file("data.validation", data.validation);
  training_data_of(all);
  validation_data_of(all);
  if (all.data.tokenizer) check_tokenizer(*all.data.tokenizer);
  if (all.device.network) read_network(*all.device.network);
  check_resume(all.train);
  make_results_folder(all.train.out);
}

void check_same_everywhere(const Configuration& configuration, const World& world) {
  const auto text = to_text(configuration);
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(text) >> 1);
  const auto both = largest_of_ranks(world, {hash, -hash});
  TORCH_CHECK_VALUE(
      both[0] == -both[1],
      "[train] not all ranks have the same configuration: give each the same "
      "file and the same --set");
}

Dataset checked_training_data(const Configuration& configuration, const World& world) {
  return checked(training_data_of(configuration), configuration, world);
}

std::optional<Dataset> checked_validation_data(
    const Configuration& configuration, const World& world) {
  auto data = validation_data_of(configuration);
  if (!data) return std::nullopt;
  return checked(std::move(*data), configuration, world);
}

Sampler::Options sampling_of(
    const Configuration& configuration, const Dataset& dataset, int64_t ranks) {
  const auto& data = configuration.data;
  return {
      .samples = dataset.samples(),
      .batch = data.batch,
      .micro_batches = data.micro_batches,
      .ranks = ranks,
      .shuffle = data.shuffle,
      .seed = static_cast<uint64_t>(configuration.train.seed)};
}

}  // namespace sherd
