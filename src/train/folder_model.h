// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "configuration/configuration.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/models/llama.h"

namespace sherd {

/// How a model in a Hugging Face folder is run without training it.
struct FolderOptions {
  std::string folder;                      ///< config.json and safetensors
  std::optional<std::string> tokenizer{};  ///< a tokenizer.json; default: the folder's
  std::string device = "auto";             ///< auto, cpu or cuda, as device.kind
  std::optional<std::string> dtype{};      ///< fp32, bf16 or fp16; default: bf16 on GPUs, else fp32
};

/// Returns what the folder's config.json says that all kinds of models have. Throws if sequences of
/// `seq` tokens are too long for the model.
LlamaOptions base_of_folder(const FolderOptions& options, int64_t seq);

/// A model of a folder, sharded over all ranks that were started.
class FolderModel {
 public:
  /// Collective; blocks. Reads the weights.
  FolderModel(const FolderOptions& options, int64_t seq);

  const World& world() const { return world_; }
  LanguageModel& model() { return *model_; }

 private:
  World world_;
  std::shared_ptr<LanguageModel> model_;
};

}  // namespace sherd
