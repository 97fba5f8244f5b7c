// SPDX-License-Identifier: Apache-2.0
#include "train/step_line.h"

#include <algorithm>
#include <numeric>

#include "files/byte_text.h"
#include "files/format_text.h"

namespace sherd {
namespace {

constexpr const char* kBetween = "  ";
constexpr int64_t kBetweenWidth = 2;

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

std::string joined_fields(const std::vector<LineField>& fields, const std::vector<bool>& shown) {
  std::string text;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (shown[i]) text += (text.empty() ? "" : kBetween) + fields[i].text;
  }
  return text;
}

}  // namespace

std::vector<LineField> step_fields(
    const StepMetrics& metrics, int64_t steps, double peak_matmul_tflops, double seconds_left) {
  const auto digits = static_cast<int>(std::to_string(steps).size());
  auto speed = format_text(metrics.tflops < 1 ? "%.3f TFLOP/s" : "%.0f TFLOP/s", metrics.tflops);
  if (peak_matmul_tflops > 0) {
    speed += format_text(" (%.0f %%)", 100 * metrics.tflops / peak_matmul_tflops);
  }
  return {
      {format_text(
           "step %*lld/%lld", digits, static_cast<long long>(metrics.step),
           static_cast<long long>(steps)),
       0},
      {format_text("loss %.4f", metrics.loss), 1},
      {format_text("norm %.3f", metrics.grad_norm), 4},
      {format_text("lr %.2e", metrics.lr), 5},
      {format_text("%.0f tokens/s", metrics.tokens_per_second), 3},
      {speed, 6},
      {byte_text(metrics.peak_bytes) + " of " + byte_text(metrics.planned_bytes), 7},
      {duration_text(seconds_left) + " left", 2}};
}

std::string fitted(const std::vector<LineField>& fields, int64_t columns) {
  std::vector<size_t> order(fields.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return fields[a].priority < fields[b].priority;
  });
  std::vector<bool> shown(fields.size(), false);
  int64_t used = -kBetweenWidth;
  for (const auto i : order) {
    const int64_t more = kBetweenWidth + width_of(fields[i].text);
    if (used + more > columns) break;
    shown[i] = true;
    used += more;
  }
  if (used < 0 && !order.empty()) return cut_to_width(fields[order.front()].text, columns);
  return joined_fields(fields, shown);
}

std::string whole_line(const std::vector<LineField>& fields) {
  return joined_fields(fields, std::vector<bool>(fields.size(), true));
}

int64_t width_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); });
}

std::string cut_to_width(const std::string& text, int64_t columns) {
  size_t end = 0;
  for (int64_t width = 0; end < text.size(); ++end) {
    if (!continues_character(text[end]) && ++width > columns) break;
  }
  return text.substr(0, end);
}

}  // namespace sherd
