// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "configuration/configuration.h"
#include "data/token_file.h"

namespace sherd {

/// A key whose value has changed. Values are TOML, empty if there is none.
struct ChangedKey {
  std::string key;
  std::string now;
  std::string before;
};
/// Returns the keys that differ, in the order of all keys. Paths are compared as absolute ones;
/// train.out and train.resume are not compared.
std::vector<ChangedKey> changed_keys(const Configuration& now, const Configuration& before);

/// Returns the configuration with absolute paths.
Configuration with_absolute_paths(Configuration configuration);

/// Returns a hash of a token file's size and samples of its contents, to be stored in checkpoints.
int64_t fingerprint_of(const TokenFile& file);

/// Compares a run with the run that saved a checkpoint, and returns a line for each key that has
/// changed. Throws if the model differs, or if data, seed or model.from differ and train.resume
/// does not name the checkpoint. Called by one rank; reads small files only.
std::string compare_with_earlier_run(
    const Configuration& configuration, const std::string& checkpoint, int64_t data_fingerprint);

}  // namespace sherd
