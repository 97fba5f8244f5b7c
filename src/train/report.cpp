// SPDX-License-Identifier: Apache-2.0
#include "train/report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "configuration/keys.h"
#include "configuration/to_toml.h"
#include "files/byte_text.h"
#include "files/format_text.h"
#include "forecast/plan_page_files.h"
#include "sherd/version.h"
#include "train/plot.h"
#include "train/report_files.h"

namespace sherd {
namespace {

constexpr size_t kMostPoints = 800;  // of a line
constexpr size_t kFewSteps = 10;     // of which smoothing says nothing
constexpr int64_t kRefreshSeconds = 10;

using Metrics = std::vector<StepMetrics>;
using MetricOf = std::function<double(const StepMetrics&)>;
using NamedText = std::pair<std::string, std::string>;

// ---- curves
std::vector<PlotPoint> points_of(const Metrics& steps, const MetricOf& value) {
  std::vector<PlotPoint> points;
  for (const auto& one : steps) points.push_back({static_cast<double>(one.step), value(one)});
  return points;
}

std::vector<double> resumed_steps(const Metrics& steps) {
  std::vector<double> result;
  for (const auto& one : steps) {
    if (one.resumed) result.push_back(static_cast<double>(one.step));
  }
  return result;
}

/// The value as it is and, of more than a few steps, smoothed.
std::vector<PlotLine> lines_of(const Metrics& steps, const char* name, const MetricOf& value) {
  const auto points = points_of(steps, value);
  const auto raw = thinned(points, kMostPoints);
  if (points.size() < kFewSteps) return {{name, "var(--c0)", raw}};
  const double window = std::clamp(static_cast<double>(points.size()) / 40, 4.0, 100.0);
  return {
      {name, "var(--c0)", raw, true},
      {"smoothed", "var(--c0)", thinned(smoothed(points, window), kMostPoints)}};
}

std::string both_scales(
    const char* title, const std::vector<PlotLine>& lines, const std::vector<double>& marks) {
  return Plot(title, lines, marks).html("linear") +
         Plot(title, lines, marks, Plot::Scale::logarithmic).html("logarithmic");
}

/// How long the slowest and the fastest rank computed; nothing for a single rank.
std::string plot_of_ranks(const Metrics& steps, const std::vector<double>& marks) {
  std::vector<PlotPoint> slowest, fastest;
  for (const auto& step : steps) {
    if (!step.ranks) continue;
    const auto number = static_cast<double>(step.step);
    slowest.push_back({number, step.ranks->slowest * 1e3});
    fastest.push_back({number, step.ranks->fastest * 1e3});
  }
  if (slowest.empty()) return "";
  return Plot(
             "Computing time of a rank, ms",
             {{"slowest", "var(--c0)", thinned(slowest, kMostPoints)},
              {"fastest", "var(--c1)", thinned(fastest, kMostPoints)}},
             marks)
      .html();
}

/// Which rank was the slowest in most steps.
std::string sentence_on_ranks(const Metrics& steps) {
  std::map<int64_t, int64_t> counts;
  int64_t all = 0;
  double spread = 0;
  for (const auto& step : steps) {
    if (!step.ranks) continue;
    ++all;
    ++counts[step.ranks->slowest_rank];
    spread += step.ranks->slowest - step.ranks->fastest;
  }
  if (all == 0) return "";
  const auto most = std::max_element(counts.begin(), counts.end(), [](auto& one, auto& other) {
    return one.second < other.second;
  });
  std::ostringstream out;
  out << " Rank " << most->first << " was the slowest in " << most->second << " of " << all
      << (all == 1 ? " step" : " steps") << "; between the slowest and the fastest rank were "
      << brief_number(spread / static_cast<double>(all) * 1e3) << " ms of computing a step.";
  return out.str();
}

std::string curves(const Metrics& steps) {
  const auto marks = resumed_steps(steps);
  auto losses = lines_of(steps, "training", [](const StepMetrics& one) { return one.loss; });
  std::vector<PlotPoint> validation;
  for (const auto& one : steps) {
    if (one.val_loss) validation.push_back({static_cast<double>(one.step), *one.val_loss});
  }
  if (!validation.empty()) {
    losses.push_back({"validation", "var(--c1)", thinned(validation, kMostPoints)});
  }
  const auto single = [&](const char* title, const MetricOf& value) {
    const PlotLine line{title, "var(--c0)", thinned(points_of(steps, value), kMostPoints)};
    return Plot(title, {line}, marks).html();
  };
  return both_scales("Loss", losses, marks) +
         both_scales(
             "Gradient norm",
             lines_of(steps, "norm", [](const StepMetrics& one) { return one.grad_norm; }), marks) +
         single("Learning rate", [](const StepMetrics& one) { return one.lr; }) +
         single("Tokens per second", [](const StepMetrics& one) { return one.tokens_per_second; }) +
         plot_of_ranks(steps, marks);
}

// ---- what the run is
std::string grouped_number(int64_t number) {
  auto text = std::to_string(number);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3)
    text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

double seconds_of(const Metrics& steps) {
  double seconds = 0;
  for (const auto& one : steps) seconds += one.step_seconds;
  return seconds;
}

std::optional<StepMetrics> best_validation(const Metrics& steps) {
  std::optional<StepMetrics> best;
  for (const auto& one : steps) {
    if (one.val_loss && (!best || *one.val_loss < *best->val_loss)) best = one;
  }
  return best;
}

std::string list_of(const char* id, const std::vector<NamedText>& entries) {
  std::string html = "<dl id=\"" + std::string(id) + "\">";
  for (const auto& [name, text] : entries) {
    html += "<div><dt>" + escaped_html(name) + "</dt><dd>" + escaped_html(text) + "</dd></div>";
  }
  return html + "</dl>\n";
}

std::vector<NamedText> figures_of(const Configuration& configuration, const Metrics& steps) {
  if (steps.empty()) return {};
  const auto& last = steps.back();
  std::vector<NamedText> result{
      {"step of " + grouped_number(configuration.train.steps), grouped_number(last.step)},
      {"loss", brief_number(last.loss)}};
  if (const auto best = best_validation(steps)) {
    result.emplace_back(
        "best validation loss, step " + grouped_number(best->step), brief_number(*best->val_loss));
  }
  const double seconds = seconds_of(steps);
  if (last.tokens > 0) result.emplace_back("tokens seen", grouped_number(last.tokens));
  double tokens = 0;
  for (const auto& one : steps) tokens += one.tokens_per_second * one.step_seconds;
  if (seconds > 0) {
    result.emplace_back("tokens/s", grouped_number(static_cast<int64_t>(tokens / seconds)));
  }
  return result;
}

std::string host_name() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::vector<NamedText> facts_of(
    const Configuration& configuration, const ReportFacts& facts, const Metrics& steps) {
  const auto& model = configuration.model;
  const auto& precision = configuration.precision;
  const auto& sizes = facts.sizes;
  std::vector<NamedText> result{
      {"model", model.kind + (model.from ? " from " + *model.from : "")},
      {"parameters", grouped_number(sizes.parameters)},
      {"precision", precision.recipe.value_or(precision.compute.value_or("fp32"))},
      {"ranks", std::to_string(facts.ranks)},
      {"device", facts.device},
      {"machine", host_name()}};
  const auto seq = configuration.data.seq;
  result.emplace_back("tokens of a step", grouped_number(sizes.step_samples * seq));
  result.emplace_back("tokens of the data", grouped_number(sizes.data_tokens));
  if (!steps.empty()) {
    const auto& last = steps.back();
    const auto epoch_tokens = static_cast<double>(sizes.samples * seq);
    if (epoch_tokens > 0) {
      result.emplace_back(
          "epoch", format_text("%.3g", static_cast<double>(last.tokens) / epoch_tokens));
    }
    result.emplace_back("training time", duration_text(seconds_of(steps)));
    result.emplace_back("learning rate", brief_number(last.lr));
    result.emplace_back(
        "memory of the fullest rank",
        byte_text(last.peak_bytes) + " of " + byte_text(last.planned_bytes) + " planned");
  }
  std::string resumed;
  for (const double step : resumed_steps(steps)) {
    resumed += (resumed.empty() ? "" : ", ") + std::to_string(static_cast<int64_t>(step));
  }
  if (!resumed.empty()) result.emplace_back("continued at step", resumed);
  if (!facts.checkpoint.empty()) result.emplace_back("newest checkpoint", facts.checkpoint);
  std::istringstream versions(version_text());
  for (std::string line; std::getline(versions, line);) {
    const auto space = line.find(' ');
    if (space == std::string::npos) continue;
    result.emplace_back(line.substr(0, space), line.substr(line.find_first_not_of(' ', space)));
  }
  return result;
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%F %T UTC", &parts);
  return text.data();
}

std::string summary_of(
    const Configuration& configuration, const ReportFacts& facts, const Metrics& steps) {
  std::string text = std::to_string(steps.size()) + (steps.size() == 1 ? " step" : " steps") +
                     " of a " + configuration.model.kind + " on " + std::to_string(facts.ranks) +
                     (facts.ranks == 1 ? " rank" : " ranks") + " in " +
                     duration_text(seconds_of(steps));
  if (!steps.empty()) {
    text += ": loss " + brief_number(steps.front().loss) + " at the start, " +
            brief_number(steps.back().loss) + (facts.running ? " now" : " at the end");
  }
  if (!facts.running) return text + ".";
  return text + ". Written at " + time_text() + " while the run was going on.";
}

// ---- tables
std::string memory_table(const Ledger& ledger) {
  const auto cells = [](int64_t planned, const std::optional<int64_t>& measured) {
    return "<td>" + byte_text(planned) + "</td><td>" + (measured ? byte_text(*measured) : "") +
           "</td></tr>";
  };
  std::string html =
      "<table id=\"ledger\"><thead><tr><th>bytes</th><th>planned</th><th>measured</th></tr>"
      "</thead><tbody>";
  for (const auto& entry : ledger.entries) {
    html += "<tr><th>" + escaped_html(entry.name) + "</th>" + cells(entry.planned, entry.measured);
  }
  return html + "</tbody><tfoot><tr><th>total</th>" + cells(ledger.planned(), ledger.measured()) +
         "</tfoot></table>\n";
}

std::string samples_of(const std::vector<WrittenText>& written) {
  if (written.empty()) return "";
  std::string html = "<section id=\"samples\"><h2>What the model writes after step " +
                     std::to_string(written.front().step) + "</h2>\n";
  for (const auto& [step, prompt, text] : written) {
    html += "<p><b>" + escaped_html(prompt) + "</b>" + escaped_html(text) + "</p>\n";
  }
  return html + "</section>\n";
}

/// A key's meaning begins with the kinds of model that have it, unless all do.
bool has_key(const std::string& kind, const std::string& meaning) {
  const auto colon = meaning.find(": ");
  if (colon == std::string::npos) return true;
  bool names_kinds = true, names_mine = false;
  std::istringstream words(meaning.substr(0, colon));
  for (std::string word; std::getline(words, word, ',');) {
    word.erase(0, word.find_first_not_of(' '));
    names_kinds &= word == "moe" || word == "hybrid" || word == "vlm";
    names_mine |= word == kind;
  }
  return !names_kinds || names_mine;
}

std::string keys_of_run(const Configuration& configuration) {
  std::string text;
  sections(configuration, [&](const char* name, const auto& section) {
    text += std::string(text.empty() ? "" : "\n") + "[" + name + "]\n";
    keys(section, [&](const char* key, const auto& value, const Key& about) {
      const auto shown = to_toml(value);
      const bool has = has_key(configuration.model.kind, about.meaning);
      if (has && !shown.empty()) text += std::string(key) + " = " + shown + "\n";
    });
  });
  return text;
}

}  // namespace

std::string report_html(
    const Configuration& configuration,
    const ReportFacts& facts,
    const Metrics& steps,
    const Ledger& ledger) {
  std::ostringstream out;
  out << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
         "style-src 'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width\">\n";
  if (facts.running) {
    out << "<meta http-equiv=\"refresh\" content=\"" << kRefreshSeconds << "\">\n";
  }
  const auto name = escaped_html(configuration.train.out);
  out << "<title>Sherd: " << name << "</title>\n<style>" << kStyleCss << kReportCss
      << "</style></head>\n<body><header><h1>" << name << "</h1></header>\n<p id=\"summary\">"
      << escaped_html(summary_of(configuration, facts, steps) + sentence_on_ranks(steps))
      << "</p>\n"
      << list_of("figures", figures_of(configuration, steps))
      << list_of("facts", facts_of(configuration, facts, steps))
      << "<h2>Curves</h2>\n<input type=\"checkbox\" id=\"log\"> <label for=\"log\">logarithmic "
         "scale for loss and norm</label>\n<section id=\"curves\">\n"
      << curves(steps) << "</section>\n"
      << samples_of(facts.written) << "<section id=\"memory\"><h2>Memory of rank 0</h2>\n"
      << memory_table(ledger) << "</section>\n<h2>Configuration</h2>\n<pre>"
      << escaped_html(keys_of_run(configuration)) << "</pre>\n</body></html>\n";
  return out.str();
}

}  // namespace sherd
