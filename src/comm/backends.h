// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "comm/launch.h"
#include "comm/session.h"
#include "sherd/comm/world.h"

namespace sherd {

/// A backend that World::from_environment() can choose.
struct BackendEntry {
  Backend backend;
  const char* name;  ///< as its communicators return it from backend()
  /// Returns whether this build and machine have its devices. The first such entry is the default.
  bool (*is_available)();
  /// Opens it among the ranks of a launch. Collective: all ranks call it at the same point, with
  /// equal options. Blocks until all have arrived, for options.start_timeout at most, and then
  /// throws an error that names the missing ranks. Throws with the remedy if the build or the
  /// machine lacks what the backend needs, or if the launcher does not suit it.
  std::unique_ptr<Session> (*open)(const Launch& launch, const WorldOptions& options);
};

/// Returns all backends that connect processes, in the order in which a default is looked for. An
/// emulated world is opened by open_emulated() instead.
SHERD_API std::span<const BackendEntry> backends();

/// Returns the entry of the chosen backend, or of the default one.
const BackendEntry& find_backend(std::optional<Backend> chosen);

}  // namespace sherd
