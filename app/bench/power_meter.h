// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace sherd::app {

/// Power and SM clock of a GPU, sampled by a thread while the object exists. Without a GPU or NVML
/// it has no samples; that is not an error.
class PowerMeter {
 public:
  using Clock = std::chrono::steady_clock;
  struct Mean {
    double watts = 0;
    double sm_mhz = 0;
  };

  explicit PowerMeter(c10::Device device);
  ~PowerMeter();
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;

  /// Returns the driver's name of the GPU.
  const std::string& name() const { return name_; }
  /// Returns the mean of the samples between two moments; nothing if there are none.
  std::optional<Mean> mean(Clock::time_point begin, Clock::time_point end) const;

 private:
  class Nvml;
  struct Sample {
    Clock::time_point when;
    Mean value;
  };

  void watch(const std::stop_token& stop);

  std::string name_;
  std::unique_ptr<Nvml> nvml_;
  mutable std::mutex mutex_;
  std::condition_variable_any end_;
  std::vector<Sample> samples_;
  std::jthread thread_;  // the last: it ends before what it uses
};

}  // namespace sherd::app
