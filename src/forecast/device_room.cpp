// SPDX-License-Identifier: Apache-2.0
#include "forecast/device_room.h"

#include <c10/util/Exception.h>

#include <fstream>

#include "configuration/byte_size.h"
#include "device/device_memory.h"
#include "forecast/memory_probe.h"

namespace sherd {
namespace {

/// MemAvailable, which Linux estimates.
std::optional<int64_t> available_to_cpus() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t count = 0;
  while (file >> name >> count) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return count * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> free_bytes(c10::Device device) {
  if (device.is_cpu()) return available_to_cpus();
  const auto memory = device_memory(device);
  if (!memory) return std::nullopt;
  return memory->total - memory->used;
}

void check_room(
    const char* scope,
    const Ledger& planned,
    const Configuration& configuration,
    int64_t ranks,
    c10::DeviceType target,
    int64_t free) {
  const int64_t counted = planned.counted();
  if (counted <= free) return;
  TORCH_CHECK_VALUE(
      false, "[", scope, "] the run does not fit this device: ", byte_text(free),
      " are free, and without what can't be counted in advance it takes ", byte_text(counted), "; ",
      advice_on_memory(configuration, ranks, target), ". sherd plan shows all of it");
}

void check_room(
    const char* scope,
    const Ledger& planned,
    const Configuration& configuration,
    int64_t ranks,
    c10::Device device) {
  const auto free = free_bytes(device);
  if (free) check_room(scope, planned, configuration, ranks, device.type(), *free);
}

}  // namespace sherd
