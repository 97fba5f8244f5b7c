// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sherd/export.h"

namespace sherd {

/// Returns the versions of Sherd, torch, MPI, CUDA and the compiler, one a line.
SHERD_API std::string version_text();

}  // namespace sherd
