// SPDX-License-Identifier: Apache-2.0
#include "train/training_samples.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/tokenizer/json_value.h"
#include "data/tokenizer/text_stream.h"
#include "train/continuation.h"

namespace sherd {
namespace {

constexpr size_t kShownOfSample = 120;  // bytes

/// A tokenizer.json, or the folder that has one, or neither.
TextTokens text_tokens_of(const Configuration& configuration) {
  const auto& tokenizer = configuration.data.tokenizer;
  const auto vocab = configuration.model.vocab;
  std::error_code code;
  if (tokenizer && !std::filesystem::is_directory(*tokenizer, code)) {
    return TextTokens("the model", vocab, tokenizer);
  }
  return TextTokens(tokenizer.value_or(configuration.model.from.value_or("the model")), vocab);
}

}  // namespace

TrainingSamples::TrainingSamples(
    const Configuration& configuration, const World& world, LanguageModel& model)
    : train_(configuration.train),
      world_(world),
      model_(model),
      text_(text_tokens_of(configuration)) {
  for (const auto& prompt : train_.sample_prompts) {
    auto tokens = text_.prefix();
    for (const int64_t token : text_.encode(prompt, "train.sample_prompts"))
      tokens.push_back(token);
    TORCH_CHECK_VALUE(
        !tokens.empty(),
        "[train] train.sample_prompts has an empty text: give each at least one "
        "character");
    prompts_.push_back(std::move(tokens));
  }
}

bool TrainingSamples::due(int64_t step) const {
  return step % train_.sample_every == 0;
}

std::vector<std::string> TrainingSamples::write(int64_t step, const std::string& path) {
  const ContinuationOptions options{
      .max_tokens = train_.sample_tokens,
      .choice = {.temperature = 1, .top_p = 0.95, .seed = static_cast<uint64_t>(train_.seed)}};
  std::vector<std::string> lines;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const auto tokens = continuation_of(model_, world_, prompts_[i], options);
    if (world_.rank() != 0) continue;
    TextStream stream;
    std::string text;
    for (const int64_t token : tokens) text += stream.add(text_.bytes_of(token));
    text += stream.finish();
    const auto& prompt = train_.sample_prompts[i];
    std::ofstream(path, std::ios::app)
        << nlohmann::ordered_json{{"step", step}, {"prompt", prompt}, {"text", text}}.dump()
        << '\n';
    const auto shown = nlohmann::json(shortened(prompt + "|" + text, kShownOfSample)).dump();
    lines.push_back("sample of step " + std::to_string(step) + ": " + shown);
  }
  return lines;
}

}  // namespace sherd
