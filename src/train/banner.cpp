// SPDX-License-Identifier: Apache-2.0
#include "train/banner.h"

#include <c10/util/StringUtil.h>

#include <tuple>

#include "configuration/axes.h"
#include "configuration/setup.h"
#include "device/device_name.h"
#include "files/byte_text.h"
#include "files/format_text.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/version.h"
#include "train/run_inputs.h"

namespace sherd {
namespace {

/// Returns a number with commas between groups of three digits.
std::string grouped(int64_t number) {
  auto text = std::to_string(number);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string counted(int64_t count, const char* one) {
  return grouped(count) + " " + one + (count == 1 ? "" : "s");
}

std::string precision_of_run(const PrecisionSection& precision) {
  return precision.recipe.value_or(precision.compute.value_or("fp32"));
}

}  // namespace

RunSizes sizes_of(
    const Configuration& configuration,
    const World& world,
    const Dataset& data,
    const LanguageModel& model,
    int64_t planned_bytes) {
  const Sampler sampler(
      sampling_of(configuration, data, data_ranks_of(configuration, world.size())));
  RunSizes sizes{
      .data_tokens = data.size(),
      .samples = data.samples(),
      .step_samples = sampler.samples_from(0),
      .planned_bytes = planned_bytes};
  for (const auto& item : model.named_parameters()) {
    const auto shape = whole_shape(item.value());
    sizes.parameters += c10::multiply_integers(shape.begin(), shape.end());
  }
  return sizes;
}

std::vector<std::string> banner(
    const Configuration& configuration, const World& world, const RunSizes& sizes) {
  const auto& [data, train] = std::tie(configuration.data, configuration.train);
  const auto version = version_text();
  const int64_t step_tokens = sizes.step_samples * data.seq;
  const double epochs = static_cast<double>(train.steps) * static_cast<double>(sizes.step_samples) /
                        static_cast<double>(sizes.samples);
  return {
      c10::str(
          version.substr(0, version.find('\n')), ": ", configuration.model.kind, " with ",
          counted(sizes.parameters, "parameter"), ", ", precision_of_run(configuration.precision),
          "; ", counted(world.size(), world.device().is_cuda() ? "GPU rank" : "CPU rank"), " on ",
          device_name(world.device())),
      c10::str(
          "data: ", counted(sizes.data_tokens, "token"), "; a step takes ", grouped(step_tokens),
          " of them, so ", counted(train.steps, "step"), " make ",
          format_text(epochs < 10 ? "%.2g" : "%.0f", epochs), " epochs and ",
          counted(train.steps * step_tokens, "token")),
      c10::str(
          "memory of a rank: ", byte_text(sizes.planned_bytes), " planned; results: ", train.out)};
}

}  // namespace sherd
