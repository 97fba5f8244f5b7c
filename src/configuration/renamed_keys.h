// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "configuration/configuration.h"

namespace sherd {

/// A key that had another name in earlier versions.
struct RenamedKey {
  std::string_view section;
  std::string_view before;
  std::string_view now;
};

inline constexpr std::array kRenamedKeys{
    RenamedKey{"optim", "clip", "max_norm"}, RenamedKey{"optim", "decay", "weight_decay_on"}};

/// Returns the renamed key for which `fits` is true; null if there is none.
template <class Fits>
const RenamedKey* find_renamed_key(Fits&& fits) {
  const auto found = std::find_if(kRenamedKeys.begin(), kRenamedKeys.end(), fits);
  return found == kRenamedKeys.end() ? nullptr : &*found;
}

/// Reads the configuration.toml of an earlier run, which may have been written by an earlier
/// version: a renamed key is read under its old name, too. Throws a ConfigurationError otherwise as
/// read_configuration does.
Configuration read_earlier_configuration(const std::string& path);

}  // namespace sherd
