// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/DeviceType.h>

#include <memory>
#include <span>

#include "comm/launch.h"
#include "comm/session.h"
#include "sherd/comm/world.h"

namespace sherd {

/// A backend that World::from_environment() can choose.
struct BackendEntry {
  Backend backend;
  const char* name;        ///< as its communicators return it from backend()
  c10::DeviceType device;  ///< of its tensors
  /// Returns whether it suits the launch. The first such entry for a device is the default.
  bool (*suits)(const Launch& launch);
  /// Opens it among the ranks of a launch. Collective: all ranks call it at the same point, with
  /// equal options. Blocks until all have arrived, for options.start_timeout at most, and then
  /// throws an error that names the missing ranks. Throws with the remedy if the build or the
  /// machine lacks what the backend needs, or if the launcher does not suit it.
  std::unique_ptr<Session> (*open)(const Launch& launch, const WorldOptions& options);
};

/// Returns all backends that connect processes, in the order in which a default is looked for. An
/// emulated world is opened by open_emulated() instead.
SHERD_API std::span<const BackendEntry> backends();

/// Returns the entry of the backend that the options name, or of the default one for their device.
/// Throws c10::ValueError if they name both and they don't fit.
const BackendEntry& find_backend(const WorldOptions& options, const Launch& launch);

}  // namespace sherd
