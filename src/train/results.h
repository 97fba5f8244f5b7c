// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "configuration/configuration.h"
#include "train/run_lock.h"

namespace sherd {

/// The folder of a run's results, and the small files in it.
class Results {
 public:
  /// Makes the folder, keeps other runs out of it and removes an old report. Throws, naming
  /// train.out, where that can't be, where another run has it, or where a result would take the
  /// place of a file that the run reads.
  explicit Results(const Configuration& configuration);

  std::string path(const std::string& name) const;
  const RunLock& lock() const { return *lock_; }
  /// The configuration with every key, and paths that are right from anywhere; nothing where the
  /// run was started with that very file. A different one, which held up to `step`, is kept as
  /// configuration-<step>.toml.
  void write_configuration(int64_t step) const;
  /// Whole or not at all; throws where it can't be.
  void write(const std::string& name, const std::string& text) const;

 private:
  Configuration configuration_;
  std::unique_ptr<RunLock> lock_;
};

}  // namespace sherd
