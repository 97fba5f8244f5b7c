// SPDX-License-Identifier: Apache-2.0
#include "generate_command.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "at_least_one.h"
#include "files/format_text.h"

namespace sherd::app {
namespace {

void print_json(const Generated& result) {
  const nlohmann::ordered_json json{
      {"prompt_tokens", result.prompt},
      {"tokens", result.tokens},
      {"text", result.text},
      {"ended", result.ended ? "end token" : "max tokens"}};
  std::cout << json.dump() << std::endl;
}

/// How fast the tokens after the first one were made, which takes as long as the prompt does.
std::string speed_of(const Generated& result) {
  const auto count = std::ssize(result.tokens);
  const auto counted = std::to_string(count) + (count == 1 ? " token" : " tokens");
  if (count < 2) return counted;
  return counted + format_text(", %.4g a second", static_cast<double>(count - 1) / result.seconds);
}

}  // namespace

GenerateCommand::GenerateCommand(CLI::App& app)
    : command_(app.add_subcommand("generate", "Continue a prompt with the model of a folder")) {
  folder_.add_to(*command_);
  auto& continuation = options_.continuation;
  auto& choice = continuation.choice;
  command_->add_option("--prompt", options_.prompt, "The text to continue")
      ->type_name("TEXT")
      ->required();
  command_
      ->add_option(
          "--max-tokens", continuation.max_tokens, "The most tokens to write; default: 128")
      ->check(at_least_one());
  command_
      ->add_option(
          "--temperature", choice.temperature,
          "Draw tokens, after dividing their logits by this; default: 0, always the most likely "
          "one")
      ->check(CLI::NonNegativeNumber);
  command_->add_option("--top-k", choice.top_k, "Draw among the k most likely tokens; default: all")
      ->check(at_least_one());
  command_
      ->add_option(
          "--top-p", choice.top_p,
          "Draw among the fewest tokens whose probabilities add up to this; default: 1")
      ->check(CLI::Range(0.0, 1.0));
  command_->add_option("--seed", choice.seed, "The same draws for the same seed; default: 1");
  command_->add_flag(
      "--no-prefix", no_prefix_,
      "Do not begin with what the tokenizer puts in front of a text, such as <|begin_of_text|>");
  command_->add_flag(
      "--ignore-end", options_.ignore_end, "Go on after a token that ends the text (eos_token_id)");
  command_->add_flag("--json", json_, "Print tokens and text as JSON, when all are there");
}

GenerateOptions GenerateCommand::options() const {
  auto result = options_;
  result.model = folder_.options;
  result.prefix = !no_prefix_;
  return result;
}

int GenerateCommand::run(char** arguments) const {
  const auto all = options();
  const auto show = [](const std::string& text) { std::cout << text << std::flush; };
  return folder_.run(
      arguments, [&] { check_generate(all); },
      [&] {
        const auto result = json_ ? generate(all) : generate(all, show);
        if (!result.first_rank) return 0;
        if (json_) {
          print_json(result);
        } else {
          std::cout << std::endl;
          std::cerr << speed_of(result) << std::endl;
        }
        return 0;
      });
}

}  // namespace sherd::app
