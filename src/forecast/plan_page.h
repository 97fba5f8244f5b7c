// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// One page that needs nothing else and draws a plan: memory by name, the arena and the streams
/// over time, units, traffic and other world sizes. `json` is the plan in bytes and seconds;
/// `worlds` has tokens per second of all ranks. What a plan lacks, or has as null, the page says in
/// a line. Text that is no JSON makes a page that says so. The address may end in `#world=64`.
std::string plan_page(const std::string& json);

}  // namespace sherd
