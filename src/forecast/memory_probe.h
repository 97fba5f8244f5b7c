// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "configuration/configuration.h"
#include "forecast/ledger.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"

namespace sherd {

/// Measures the memory that a run takes on its device. On a CPU only Sherd's own allocations are
/// known.
class MemoryProbe {
 public:
  /// To be made before anything is allocated.
  explicit MemoryProbe(c10::Device device);
  /// Measures the communicators; call it when all are open and nothing has been computed yet.
  /// `beside`: bytes of tensors outside torch's allocator, such as a symmetric arena.
  void note_communicators(int64_t beside = 0);
  /// Replaces a plan's assumptions by measurements, before the first step.
  void correct(Ledger& planned) const;
  /// Fills in the measured bytes, after some steps.
  void measure(Ledger& ledger, const LanguageModel& model, const AdamW& optimizer) const;

 private:
  c10::Device device_;
  int64_t context_ = 0;
  int64_t communicators_ = 0;
  int64_t beside_ = 0;
};

/// Returns the advice for a run that is out of memory: the largest entries, and the change of the
/// configuration that would save most.
std::string advice_on_memory(
    const Configuration& configuration, int64_t ranks, c10::DeviceType target);

}  // namespace sherd
