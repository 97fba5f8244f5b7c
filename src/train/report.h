// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "forecast/ledger.h"
#include "train/metrics.h"

namespace sherd {

/// Returns a self-contained HTML page about a run: configuration, plots of all steps, memory.
std::string report_html(
    const Configuration& configuration,
    int64_t ranks,
    const std::vector<StepMetrics>& steps,
    const Ledger& ledger);

}  // namespace sherd
