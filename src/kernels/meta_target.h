// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace sherd {

/// The kind of device that the meta device stands for on this thread: what only a GPU needs, such
/// as tables of a kernel's arguments, is counted where it is one.
inline c10::DeviceType& meta_target() {
  thread_local c10::DeviceType type = c10::DeviceType::CPU;
  return type;
}

/// A GPU, or the meta device in its place.
inline bool needs_device_tables(c10::Device device) {
  return device.is_cuda() || (device.is_meta() && meta_target() == c10::DeviceType::CUDA);
}

}  // namespace sherd
