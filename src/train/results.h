// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "configuration/configuration.h"
#include "train/run_lock.h"

namespace sherd {

/// Creates the folder `out` if it is missing. Throws, naming train.out, if that fails or nothing
/// can be written to it.
void make_results_folder(const std::string& out);

/// The folder of a run's results, and the small files in it.
class Results {
 public:
  /// Creates the folder, locks it and removes an old report. Throws, naming train.out, if that
  /// fails, if another run has the lock, or if a result would overwrite a file that the run reads.
  explicit Results(const Configuration& configuration);

  std::string path(const std::string& name) const;
  const RunLock& lock() const { return *lock_; }
  /// Writes the configuration with every key and absolute paths, unless the run was started with
  /// that file. A different older one, which was used up to `step`, is kept as
  /// configuration-<step>.toml.
  void write_configuration(int64_t step) const;
  /// Writes a file completely or not at all; throws if that fails.
  void write(const std::string& name, const std::string& text) const;

 private:
  Configuration configuration_;
  std::unique_ptr<RunLock> lock_;
};

}  // namespace sherd
