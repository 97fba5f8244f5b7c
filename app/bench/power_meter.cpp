// SPDX-License-Identifier: Apache-2.0
#include "bench/power_meter.h"

#include <dlfcn.h>

#include <array>

namespace sherd::app {
namespace {

/// NVML averages power over about a second itself; asking more often only disturbs the run.
constexpr std::chrono::milliseconds kInterval{100};
constexpr int kSmClock = 1;  // NVML_CLOCK_SM

using NvmlDevice = void*;

template <class Function>
bool find(void* library, const char* name, Function*& into) {
  into = reinterpret_cast<Function*>(dlsym(library, name));
  return into != nullptr;
}

/// NVML knows all GPUs of the machine; the bus says which of them is CUDA's. A build without CUDA
/// has no such function, and no CUDA device either.
std::optional<std::string> bus_of(c10::Device device) {
  int (*bus_id)(char*, int, int) = nullptr;
  if (!find(RTLD_DEFAULT, "cudaDeviceGetPCIBusId", bus_id)) return std::nullopt;
  std::array<char, 32> text{};
  const int index = device.has_index() ? device.index() : 0;
  if (bus_id(text.data(), static_cast<int>(text.size()), index) != 0) return std::nullopt;
  return text.data();
}

}  // namespace

/// The driver's library, which comes with the driver and not with the toolkit: opened when needed.
class PowerMeter::Nvml {
 public:
  /// Null where any of it is missing.
  static std::unique_ptr<Nvml> open(c10::Device device) {
    std::unique_ptr<Nvml> nvml(new Nvml);
    return nvml->start(device) ? std::move(nvml) : nullptr;
  }
  ~Nvml() {
    if (started_) shutdown_();
    if (library_) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string name() const {
    std::array<char, 128> text{};
    return name_(device_, text.data(), static_cast<unsigned>(text.size())) == 0 ? text.data() : "";
  }

  std::optional<Mean> read() const {
    unsigned milliwatts = 0;
    unsigned mhz = 0;
    if (power_(device_, &milliwatts) != 0 || clock_(device_, kSmClock, &mhz) != 0) {
      return std::nullopt;
    }
    return Mean{milliwatts / 1e3, static_cast<double>(mhz)};
  }

 private:
  Nvml() = default;

  bool start(c10::Device device) {
    const auto bus = bus_of(device);
    library_ = bus ? dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL) : nullptr;
    int (*init)() = nullptr;
    int (*by_bus)(const char*, NvmlDevice*) = nullptr;
    const bool whole = library_ && find(library_, "nvmlInit_v2", init) &&
                       find(library_, "nvmlShutdown", shutdown_) &&
                       find(library_, "nvmlDeviceGetHandleByPciBusId_v2", by_bus) &&
                       find(library_, "nvmlDeviceGetName", name_) &&
                       find(library_, "nvmlDeviceGetPowerUsage", power_) &&
                       find(library_, "nvmlDeviceGetClockInfo", clock_);
    started_ = whole && init() == 0;
    return started_ && by_bus(bus->c_str(), &device_) == 0;
  }

  void* library_ = nullptr;
  bool started_ = false;
  NvmlDevice device_ = nullptr;
  int (*shutdown_)() = nullptr;
  int (*name_)(NvmlDevice, char*, unsigned) = nullptr;
  int (*power_)(NvmlDevice, unsigned*) = nullptr;
  int (*clock_)(NvmlDevice, int, unsigned*) = nullptr;
};

PowerMeter::PowerMeter(c10::Device device)
    : nvml_(device.is_cuda() ? Nvml::open(device) : nullptr) {
  if (!nvml_) return;
  name_ = nvml_->name();
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

PowerMeter::~PowerMeter() = default;

void PowerMeter::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!end_.wait_for(lock, stop, kInterval, [&] { return stop.stop_requested(); })) {
    if (const auto value = nvml_->read()) samples_.push_back({Clock::now(), *value});
  }
}

std::optional<PowerMeter::Mean> PowerMeter::mean(
    Clock::time_point begin, Clock::time_point end) const {
  const std::lock_guard lock(mutex_);
  Mean sum;
  double count = 0;
  for (const auto& sample : samples_) {
    if (sample.when < begin || sample.when > end) continue;
    sum.watts += sample.value.watts;
    sum.sm_mhz += sample.value.sm_mhz;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return Mean{sum.watts / count, sum.sm_mhz / count};
}

}  // namespace sherd::app
