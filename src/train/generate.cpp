// SPDX-License-Identifier: Apache-2.0
#include "train/generate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "data/tokenizer/text_stream.h"
#include "data/tokenizer/text_tokens.h"
#include "device/timing.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

/// The prompt in tokens, and those that end a text.
struct Prompt {
  TextTokens text;
  std::vector<int64_t> tokens{};
  std::vector<int64_t> ends{};
};

/// The tokens that end a text: those of generation_config.json, else of config.json.
std::vector<int64_t> ends_of(const std::string& folder) {
  using Json = nlohmann::json;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto json = read_json<Json>(std::filesystem::path(folder) / name);
    if (!json.is_object()) continue;
    const auto found = json.value.find("eos_token_id");
    if (found == json.value.end() || found->is_null()) continue;
    std::vector<int64_t> result;
    for (const auto& token : found->is_array() ? *found : Json::array({*found})) {
      TORCH_CHECK_VALUE(
          token.is_number_integer(), "[generate] ", folder, "/", name,
          ": eos_token_id = ", found->dump(), ": it is a token number, or a list of them");
      result.push_back(token.get<int64_t>());
    }
    return result;
  }
  return {};
}

Prompt read_prompt(const GenerateOptions& options) {
  const auto& choice = options.continuation.choice;
  TORCH_CHECK_VALUE(
      choice.temperature > 0 || (choice.top_k == 0 && choice.top_p == 1),
      "[generate] --top-k and --top-p choose among likely tokens, but without --temperature it is "
      "always the most likely one: give --temperature 1");
  const auto& model = options.model;
  const auto base = base_of_folder(model, 0);
  Prompt prompt{TextTokens(model.folder, base.vocab, model.tokenizer)};
  if (!options.ignore_end) prompt.ends = ends_of(model.folder);
  prompt.tokens = prompt.text.encode(options.prompt, "the prompt");
  const auto prefix = prompt.text.prefix();
  const bool there = prompt.tokens.size() >= prefix.size() &&
                     std::equal(prefix.begin(), prefix.end(), prompt.tokens.begin());
  if (options.prefix && !there) {
    prompt.tokens.insert(prompt.tokens.begin(), prefix.begin(), prefix.end());
  }
  TORCH_CHECK_VALUE(
      !prompt.tokens.empty(),
      "[generate] the prompt is empty, and the tokenizer puts no token in front of a text: give "
      "--prompt at least one character");
  base_of_folder(model, std::ssize(prompt.tokens) + options.continuation.max_tokens);
  return prompt;
}

}  // namespace

void check_generate(const GenerateOptions& options) {
  read_prompt(options);
}

Generated generate(
    const GenerateOptions& options, const std::function<void(const std::string&)>& show) {
  auto prompt = read_prompt(options);
  FolderModel folder(options.model, std::ssize(prompt.tokens) + options.continuation.max_tokens);
  auto continuation = options.continuation;
  continuation.ends = prompt.ends;
  Generated result{.prompt = prompt.tokens, .first_rank = folder.world().rank() == 0};
  TextStream stream;
  const auto add = [&](const std::string& text) {
    result.text += text;
    if (show && result.first_rank && !text.empty()) show(text);
  };
  const auto& ends = continuation.ends;
  auto begin = std::chrono::steady_clock::now();
  bool first = true;
  const auto each = [&](int64_t token) {
    if (std::exchange(first, false)) begin = std::chrono::steady_clock::now();
    result.ended = std::find(ends.begin(), ends.end(), token) != ends.end();
    if (!result.ended) add(stream.add(prompt.text.bytes_of(token)));
  };
  result.tokens =
      continuation_of(folder.model(), folder.world(), prompt.tokens, continuation, each);
  add(stream.finish());
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace sherd
