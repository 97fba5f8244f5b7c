// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sherd/export.h"

namespace sherd {

/// Sherd's version and those of what it was built with and runs on, a line each.
SHERD_API std::string version_text();

}  // namespace sherd
