// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "configuration/configuration.h"
#include "forecast/ledger.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"

namespace sherd {

/// Finds out what a run takes of its device. On a CPU only what Sherd allocates is known.
class MemoryProbe {
 public:
  /// Before anything is allocated.
  explicit MemoryProbe(c10::Device device);
  /// When all communicators are there, and nothing has been computed yet. `beside`: bytes of
  /// tensors that are not torch's allocator's, such as a symmetric arena.
  void note_communicators(int64_t beside = 0);
  /// What is known before the first step but can't be counted replaces what was assumed.
  void correct(Ledger& planned) const;
  /// Fills in what was found, after some steps.
  void measure(Ledger& ledger, const LanguageModel& model, const AdamW& optimizer) const;

 private:
  c10::Device device_;
  int64_t context_ = 0;
  int64_t communicators_ = 0;
  int64_t beside_ = 0;
};

/// What a run that is out of memory is told: the largest entries, and which one change of the
/// configuration would save most.
std::string advice_on_memory(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target);

}  // namespace sherd
