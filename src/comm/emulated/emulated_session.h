// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "comm/session.h"
#include "sherd/comm/world.h"

namespace sherd {

/// Opens one rank of a world without other processes; see Emulation. Not collective. Throws if a
/// setting is out of range, and for CUDA in a build without it.
std::unique_ptr<Session> open_emulated(const Emulation& emulation);

}  // namespace sherd
