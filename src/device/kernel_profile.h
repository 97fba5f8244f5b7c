// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace sherd {

/// Runs a function and writes when each of its kernels and operations ran, as a Chrome trace.
void profile_kernels(const std::string& path, const std::function<void()>& function);

}  // namespace sherd
