// SPDX-License-Identifier: Apache-2.0
#include "train/not_finite.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "configuration/to_toml.h"

namespace sherd {
namespace {

constexpr size_t kNamed = 4;

std::string remedies(const Configuration& configuration) {
  const auto& [optim, precision] = std::tie(configuration.optim, configuration.precision);
  std::vector<std::string> words{"lower optim.lr (it is " + number(optim.lr) + ")"};
  words.push_back(
      optim.max_norm ? "lower optim.max_norm (it is " + number(*optim.max_norm) + ")"
                     : "set optim.max_norm = 1.0");
  words.push_back(c10::str("raise optim.warmup (it is ", optim.warmup, " steps)"));
  if (precision.recipe == "bf16_o3" || precision.main == "bf16" || precision.main == "fp16") {
    words.emplace_back("use a higher precision, such as precision.recipe = \"bf16_o2\"");
  }
  if (configuration.train.watch != "ranks") {
    words.emplace_back(
        configuration.train.watch == "off"
            ? "set train.watch = \"on\", which names the parameter"
            : "set train.watch = \"ranks\", which also names the rank");
  }
  return join(words, "; ");
}

}  // namespace

std::vector<Finding> in_order_of_backward(
    std::vector<Finding> findings, const std::vector<std::string>& parameters) {
  std::erase_if(findings, [](const Finding& one) { return one.fault == Fault::exploding; });
  const auto place = [&](const Finding& one) {
    return std::find(parameters.begin(), parameters.end(), one.parameter) - parameters.begin();
  };
  std::stable_sort(findings.begin(), findings.end(), [&](const Finding& a, const Finding& b) {
    return std::tuple(a.step, a.micro_batch, -place(a)) <
           std::tuple(b.step, b.micro_batch, -place(b));
  });
  return findings;
}

std::string culprits_text(const std::vector<Finding>& ordered) {
  if (ordered.empty()) return "the norm of its gradients is not finite";
  auto text = ordered.front().text();
  text = text.substr(0, text.find(" of step "));  // a run that was resumed counts on
  if (const auto rank = ordered.front().rank) text += c10::str(" on rank ", *rank);
  std::vector<std::string> others;
  for (size_t i = 1; i < std::min(ordered.size(), kNamed); ++i) {
    others.push_back("'" + ordered[i].parameter + "'");
  }
  if (others.empty()) return text;
  text += "; then also those of " + join(others, ", ");
  if (ordered.size() > kNamed) text += c10::str(" and ", ordered.size() - kNamed, " more");
  return text;
}

std::string not_finite_text(
    const Configuration& configuration,
    int64_t step,
    const std::vector<Finding>& ordered,
    const std::string& saved,
    const std::string& explosion) {
  const auto what =
      explosion.empty()
          ? c10::str(" is not finite: ", culprits_text(ordered), ". It changed no weight; ")
          : c10::str(" is bad: ", explosion, "; ");
  return c10::str(
      "[train] step ", step, what,
      saved.empty() ? "this run has not saved a checkpoint" : "the last good state is in " + saved,
      ". To try: ", remedies(configuration));
}

std::string explosion_text(double norm) {
  return c10::str("the norm of its gradients is ", norm, ", more than train.bad_norm allows");
}

std::string bad_step_json(
    int64_t step,
    const BadSteps::Samples& samples,
    const std::string& cause,
    const std::string& decision) {
  return nlohmann::ordered_json{
      {"step", step},
      {"samples", {samples.from, samples.to}},
      {"cause", cause},
      {"decision", decision}}
      .dump();
}

}  // namespace sherd
