// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sherd/train/configuration.h"

namespace sherd {

/// The folder of a run's results, and the small files in it.
class Results {
 public:
  /// Makes the folder and removes an old report. Throws, naming train.out, where that can't be, or
  /// where a result would take the place of a file that the run reads.
  explicit Results(const Configuration& configuration);

  std::string path(const char* name) const;
  /// The configuration with every key, and paths that are right from anywhere; nothing where the
  /// run was started with that very file.
  void write_configuration() const;
  /// Whole or not at all; throws where it can't be.
  void write(const char* name, const std::string& text) const;

 private:
  Configuration configuration_;
};

}  // namespace sherd
