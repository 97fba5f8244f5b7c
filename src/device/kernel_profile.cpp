// SPDX-License-Identifier: Apache-2.0
#include "device/kernel_profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

namespace sherd {

void profile_kernels(const std::string& path, const std::function<void()>& function) {
  namespace profiler = torch::autograd::profiler;
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities{
      torch::profiler::impl::ActivityType::CPU, torch::profiler::impl::ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  function();
  profiler::disableProfiler()->save(path);
}

}  // namespace sherd
