// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/metrics.h"

namespace sherd {

/// A field of the step line. On a narrow terminal those of the highest numbers are left out.
struct LineField {
  std::string text;
  int priority = 0;
};

/// Returns the step's numbers and the time that is left. `peak_matmul_tflops`: what the speed is a
/// share of; 0: unknown.
std::vector<LineField> step_fields(
    const StepMetrics& metrics, int64_t steps, double peak_matmul_tflops, double seconds_left);

/// Returns the fields that fit into so many columns, in their order. The one of the lowest number
/// is cut if not even that fits.
std::string fitted(const std::vector<LineField>& fields, int64_t columns);
/// Returns all fields.
std::string whole_line(const std::vector<LineField>& fields);

/// Returns the number of characters of a UTF-8 text.
int64_t width_of(const std::string& text);
/// Returns the first `columns` characters of a UTF-8 text.
std::string cut_to_width(const std::string& text, int64_t columns);

}  // namespace sherd
