// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "data/tokenizer/text_tokens.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// What the model of a run writes after some prompts, every train.sample_every steps. Keeps
/// references to what it is made of.
class TrainingSamples {
 public:
  /// Reads the tokenizer: that of data.tokenizer or model.from. Throws if there is none and the
  /// tokens are not bytes, and for a prompt without tokens.
  TrainingSamples(const Configuration& configuration, const World& world, LanguageModel& model);

  bool due(int64_t step) const;
  /// Draws the samples of a step; the same for any number of ranks. On the first rank, appends them
  /// to the file at `path` and returns a line for each. Collective; waits for the device.
  std::vector<std::string> write(int64_t step, const std::string& path);

 private:
  const TrainSection& train_;
  const World& world_;
  LanguageModel& model_;
  TextTokens text_;
  std::vector<std::vector<int64_t>> prompts_;  // in tokens
};

}  // namespace sherd
