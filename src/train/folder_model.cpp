// SPDX-License-Identifier: Apache-2.0
#include "train/folder_model.h"

#include <c10/util/Exception.h>

#include "configuration/setup.h"
#include "device/device_memory.h"
#include "sherd/models/pretrained.h"

namespace sherd {
namespace {

Configuration configuration_of(const FolderOptions& options, int64_t seq) {
  Configuration configuration;
  configuration.model.from = options.folder;
  configuration.data.seq = seq;
  configuration.device.kind = options.device;
  return configuration;
}

std::shared_ptr<LanguageModel> open_model(
    const FolderOptions& options, int64_t seq, const World& world) {
  use_expandable_segments();
  auto configuration = configuration_of(options, seq);
  configuration.model = resolved(configuration.model);
  // Nothing is updated, so no main weights in another dtype.
  const auto dtype = options.dtype.value_or(world.device().is_cuda() ? "bf16" : "fp32");
  configuration.precision.compute = configuration.precision.main = dtype;
  return model_of(configuration, mesh_of(configuration, world));
}

}  // namespace

LlamaOptions base_of_folder(const FolderOptions& options, int64_t seq) {
  auto model = read_model_options(options.folder);
  const auto base = base_of(model);
  TORCH_CHECK_VALUE(
      base.sliding_window == 0 || seq <= base.sliding_window, "[model] sequences of ", seq,
      " tokens: ", options.folder, "/config.json has sliding_window = ", base.sliding_window,
      ", and sliding windows are not supported; use shorter sequences");
  return base;
}

FolderModel::FolderModel(const FolderOptions& options, int64_t seq)
    : world_(world_of(configuration_of(options, seq))), model_(open_model(options, seq, world_)) {}

}  // namespace sherd
