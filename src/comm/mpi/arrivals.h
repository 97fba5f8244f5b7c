// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/launch.h"

namespace sherd {

/// Files that show which ranks have arrived, while MPI_Init blocks and can't tell: each rank makes
/// one in the folder that mpirun keeps for this run on this machine, and deletes at its end.
class Arrivals {
 public:
  /// Makes this rank's file.
  explicit Arrivals(const Launch& launch);

  /// Returns a clause that names the ranks without a file.
  std::string missing_text() const;

 private:
  std::filesystem::path file_of(int64_t rank) const;

  Launch launch_;
  std::filesystem::path folder_;  // empty: the launcher keeps none
};

}  // namespace sherd
