// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/launch.h"

namespace sherd {

/// Who has come to the start, while MPI itself can't say: each rank leaves a mark in the folder
/// that mpirun keeps for this run on this machine, and removes with it.
class Arrivals {
 public:
  explicit Arrivals(const Launch& launch);

  /// Who has not come, in words.
  std::string missing_text() const;

 private:
  std::filesystem::path mark(int64_t rank) const;

  Launch launch_;
  std::filesystem::path folder_;  // empty: the launcher has none
};

}  // namespace sherd
