// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "data/token_file.h"

namespace sherd {

/// A key whose value is not what it was; the values as TOML, empty where there is none.
struct ChangedKey {
  std::string key;
  std::string now;
  std::string before;
};
/// In the order of the keys. Paths are compared as absolute ones; where results go, and what a run
/// goes on from, is no change.
std::vector<ChangedKey> changed_keys(const Configuration& now, const Configuration& before);

/// The same configuration with paths that are right from anywhere.
Configuration with_absolute_paths(Configuration configuration);

/// Tells whether two token files have the same contents, from their size and samples of them: a
/// number that fits into a checkpoint's state.
int64_t fingerprint_of(const TokenFile& file);

/// Compares a run with the one that a checkpoint is of, and returns what has changed, a line per
/// key. Throws where the model is another one, or where data, seed or model.from are others and
/// train.resume does not name the checkpoint. For one rank; reads small files only.
std::string compare_with_earlier_run(
    const Configuration& configuration, const std::string& checkpoint, int64_t data_fingerprint);

}  // namespace sherd
