// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "forecast/ledger.h"
#include "train/banner.h"
#include "train/metrics.h"

namespace sherd {

/// A text that the model has written.
struct WrittenText {
  int64_t step = 0;
  std::string prompt;
  std::string text;
};

/// What a report says about a run besides its steps.
struct ReportFacts {
  int64_t ranks = 1;
  std::string device{};  ///< its name
  RunSizes sizes{};
  bool running = false;                ///< the page is rewritten: it asks for itself again
  std::string checkpoint{};            ///< the folder of the newest one; empty: there is none
  std::vector<WrittenText> written{};  ///< the newest samples
};

/// Returns a self-contained HTML page about a run: curves of all steps, what was trained on what,
/// memory by name, and the keys of the configuration that such a model has.
std::string report_html(
    const Configuration& configuration,
    const ReportFacts& facts,
    const std::vector<StepMetrics>& steps,
    const Ledger& ledger);

}  // namespace sherd
