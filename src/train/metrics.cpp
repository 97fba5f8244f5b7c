// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "files/format_text.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

/// A line of metrics.jsonl, if it is one.
std::optional<StepMetrics> read_line(const std::string& line) {
  const auto parsed = parse_json<nlohmann::json>(line);
  if (!parsed.is_object()) return std::nullopt;
  const auto& json = parsed.value;
  const auto whole = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : int64_t{0};
  };
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number() ? found->get<double>() : NAN;
  };
  StepMetrics metrics;
  metrics.step = whole("step");
  if (metrics.step <= 0) return std::nullopt;
  metrics.loss = number("loss");
  metrics.grad_norm = number("grad_norm");
  metrics.lr = number("lr");
  metrics.step_seconds = number("step_seconds");
  metrics.tokens_per_second = number("tokens_per_second");
  metrics.tflops = number("tflops");
  metrics.tokens = whole("tokens");
  metrics.resumed = json.value("resumed", nlohmann::json()) == true;
  metrics.planned_bytes = whole("planned_bytes");
  metrics.peak_bytes = whole("peak_bytes");
  if (json.contains("slowest_rank")) {
    const double slowest = number("slowest_seconds");
    metrics.ranks = {whole("slowest_rank"), slowest, slowest - number("spread_seconds")};
  }
  if (json.contains("val_loss")) metrics.val_loss = number("val_loss");
  return metrics;
}

}  // namespace

std::string StepMetrics::json() const {
  nlohmann::ordered_json line{
      {"step", step},
      {"loss", loss},
      {"grad_norm", grad_norm},
      {"lr", lr},
      {"step_seconds", step_seconds},
      {"tokens_per_second", tokens_per_second},
      {"tflops", tflops},
      {"tokens", tokens},
      {"planned_bytes", planned_bytes},
      {"peak_bytes", peak_bytes}};
  if (ranks) {
    line["slowest_rank"] = ranks->slowest_rank;
    line["slowest_seconds"] = ranks->slowest;
    line["spread_seconds"] = ranks->slowest - ranks->fastest;
  }
  if (val_loss) line["val_loss"] = *val_loss;
  if (resumed) line["resumed"] = true;
  return line.dump();
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 60) return format_text("%lld s", static_cast<long long>(whole));
  if (whole < 3600) {
    return format_text(
        "%lld min %02lld s", static_cast<long long>(whole / 60),
        static_cast<long long>(whole % 60));
  }
  return format_text(
      "%lld h %02lld min", static_cast<long long>(whole / 3600),
      static_cast<long long>(whole / 60 % 60));
}

MetricsFile::MetricsFile(const std::string& path, int64_t step) : path_(path) {
  if (step > 0) {
    std::ifstream before(path);
    for (std::string line; std::getline(before, line);) {
      if (const auto metrics = read_line(line)) {
        if (metrics->step <= step) kept_.push_back(*metrics);
      } else if (!before.eof()) {
        ++unreadable_;
        std::ofstream(unreadable_path(), std::ios::app) << line << '\n';
      }
    }
  }
  // A new file takes the place of the old one when it has all that is kept.
  const auto fresh = path + ".part";
  file_.open(fresh, std::ios::trunc);
  for (const auto& metrics : kept_) {
    last_ = file_.tellp();
    file_ << metrics.json() << '\n';
  }
  file_ << std::flush;
  TORCH_CHECK(
      file_ && std::rename(fresh.c_str(), path.c_str()) == 0, "[train] ", path,
      " can't be written: check train.out and the disk");
}

void MetricsFile::add(const StepMetrics& metrics) {
  last_ = file_.tellp();
  file_ << metrics.json() << '\n' << std::flush;
  if (file_) return;
  // A disk that is full for a while must not end the training.
  TORCH_WARN_ONCE("[train] ", path_, " can't be written: check the disk");
  file_.clear();
}

void MetricsFile::amend(const StepMetrics& metrics) {
  // It begins with the same bytes, so a crash in between leaves the line as it was.
  if (last_ >= 0) file_.seekp(last_);
  add(metrics);
}

}  // namespace sherd
