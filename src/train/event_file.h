// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/metrics.h"

namespace sherd {

using Scalars = std::vector<std::pair<std::string, double>>;  // tag and value

/// TensorBoard's event file: TFRecords, each with an Event of TensorFlow's event.proto.
class EventFile {
 public:
  /// Creates a file in the folder, which must exist.
  explicit EventFile(const std::string& folder);

  /// Appends an event, flushed to the operating system on return. TensorBoard keeps values as
  /// floats.
  void add(int64_t step, const Scalars& scalars);
  void add(const StepMetrics& metrics);

  const std::string& path() const { return path_; }

 private:
  void write(std::string_view event);

  std::string path_;
  std::ofstream file_;
  bool started_ = false;
};

/// The records of such a file; `seconds` count from 1970.
std::string record_of(std::string_view event);
std::string version_event(double seconds);
std::string start_event(double seconds, int64_t step);
std::string scalars_event(double seconds, int64_t step, const Scalars& scalars);

}  // namespace sherd
