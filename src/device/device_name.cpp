// SPDX-License-Identifier: Apache-2.0
#include "device/device_name.h"

#include <c10/util/StringUtil.h>

#include <fstream>
#include <thread>

namespace sherd {
namespace {

/// As the kernel says it; empty where it does not.
std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

std::string device_name(c10::Device device) {
  if (device.is_cuda()) return gpu_name(device);
  const auto cores = std::thread::hardware_concurrency();
  const auto model = cpu_model();
  return c10::str(cores, cores == 1 ? " core" : " cores", model.empty() ? "" : " of ", model);
}

}  // namespace sherd
