// SPDX-License-Identifier: Apache-2.0
#include "eval_command.h"

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "at_least_one.h"
#include "files/format_text.h"

namespace sherd::app {
namespace {

void print(const Evaluation& result, bool as_json) {
  const double perplexity = std::exp(result.loss);
  std::optional<double> bits;
  if (result.bytes.value_or(0) > 0) {
    bits = result.loss * static_cast<double>(result.targets) /
           (std::numbers::ln2 * static_cast<double>(*result.bytes));
  }
  if (as_json) {
    nlohmann::ordered_json json{{"loss", result.loss},      {"perplexity", perplexity},
                                {"bits_per_byte", nullptr}, {"targets", result.targets},
                                {"bytes", nullptr},         {"seq", result.seq}};
    if (bits) json["bits_per_byte"] = *bits;
    if (result.bytes) json["bytes"] = *result.bytes;
    std::cout << json.dump() << std::endl;
    return;
  }
  std::cout << format_text("loss           %.6g\n", result.loss)
            << format_text("perplexity     %.6g\n", perplexity);
  if (bits) std::cout << format_text("bits per byte  %.6g\n", *bits);
  std::cout << "targets        " << result.targets << ", in sequences of " << result.seq
            << std::endl;
}

}  // namespace

EvalCommand::EvalCommand(CLI::App& app)
    : command_(
          app.add_subcommand("eval", "Measure how well the model of a folder predicts a file")) {
  folder_.add_to(*command_);
  command_
      ->add_option(
          "--data", options_.data, "A UTF-8 text or, with --tokens, a file of token numbers")
      ->type_name("FILE")
      ->required();
  command_
      ->add_option(
          "--tokens", options_.token_dtype,
          "The data are token numbers of this dtype, uint16 or uint32 (as data.tokens)")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  command_
      ->add_option(
          "--seq", options_.seq,
          "Length of the sequences that the data are cut into; default: 1024, or the model's "
          "longest (max_position_embeddings, sliding_window) if that is shorter")
      ->check(at_least_one());
  command_
      ->add_option("--batch", options_.batch, "Sequences that a rank computes at once; default: 1")
      ->check(at_least_one());
  command_->add_flag("--json", json_, "Print the result as JSON");
}

int EvalCommand::run(char** arguments) const {
  auto options = options_;
  options.model = folder_.options;
  return folder_.run(
      arguments, [&] { check_evaluate(options); },
      [&] {
        const auto result = evaluate(options);
        if (result.first_rank) print(result, json_);
        return 0;
      });
}

}  // namespace sherd::app
