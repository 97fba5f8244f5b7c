// SPDX-License-Identifier: Apache-2.0
#include "train/run_reporter.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "device/timing.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

/// The samples of the newest step in samples.jsonl.
std::vector<WrittenText> newest_samples(const std::string& path) {
  std::vector<WrittenText> result;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto json = parse_json<nlohmann::json>(line);
    if (!json.is_object()) continue;
    const auto text = [&](const char* key) {
      const auto found = json.value.find(key);
      return found != json.value.end() && found->is_string() ? found->get<std::string>() : "";
    };
    const auto step = json.value.find("step");
    if (step == json.value.end() || !step->is_number_integer()) continue;
    if (!result.empty() && result.back().step != step->get<int64_t>()) result.clear();
    result.push_back({step->get<int64_t>(), text("prompt"), text("text")});
  }
  return result;
}

}  // namespace

RunReporter::RunReporter(
    const Configuration& configuration, const Results& results, ReportFacts facts)
    : configuration_(configuration), results_(results), facts_(std::move(facts)) {
  if (!configuration.train.on_event.empty()) command_.emplace(configuration.train.on_event);
}

RunReporter::~RunReporter() {
  if (command_ && !ended_) command_->send("end", R"({"reason": "error"})");
}

void RunReporter::started(int64_t step) {
  if (!command_) return;
  const nlohmann::ordered_json event{
      {"step", step},
      {"steps", configuration_.train.steps},
      {"out", configuration_.train.out},
      {"kind", configuration_.model.kind},
      {"parameters", facts_.sizes.parameters},
      {"ranks", facts_.ranks},
      {"device", facts_.device}};
  command_->send("start", event.dump());
}

void RunReporter::logged(const StepMetrics& metrics) {
  if (command_) command_->send("step", metrics.json());
}

void RunReporter::validated(int64_t step, double loss, bool best) {
  if (!command_) return;
  const nlohmann::ordered_json event{{"step", step}, {"val_loss", loss}, {"best", best}};
  command_->send("validation", event.dump());
}

void RunReporter::saved(const std::string& folder) {
  facts_.checkpoint = folder;
  if (command_) command_->send("checkpoint", nlohmann::ordered_json{{"folder", folder}}.dump());
}

void RunReporter::ended(int64_t step, const std::string& reason) {
  ended_ = true;
  if (!command_) return;
  command_->send("end", nlohmann::ordered_json{{"step", step}, {"reason", reason}}.dump());
}

std::string RunReporter::rewrite(const std::vector<StepMetrics>& steps, const Ledger& ledger) {
  const bool due = !written_ || seconds_since(*written_) >= kEvery;
  if (!due) return "";
  try {
    write_page(steps, ledger, true);
  } catch (const c10::Error& error) {
    written_ = std::chrono::steady_clock::now();
    return std::exchange(failed_, true) ? "" : error.what_without_backtrace();
  }
  return "";
}

void RunReporter::write(const std::vector<StepMetrics>& steps, const Ledger& ledger) {
  write_page(steps, ledger, false);
}

void RunReporter::write_page(
    const std::vector<StepMetrics>& steps, const Ledger& ledger, bool running) {
  facts_.running = running;
  facts_.written = newest_samples(results_.path("samples.jsonl"));
  results_.write("report.html", report_html(configuration_, facts_, steps, ledger));
  written_ = std::chrono::steady_clock::now();
}

}  // namespace sherd
