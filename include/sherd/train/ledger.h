// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// What a device's memory is taken for, each with its name: as planned before the first step, and
/// as it was found.
struct SHERD_API Ledger {
  struct Entry {
    std::string name;
    int64_t planned = 0;
    std::optional<int64_t> measured{};
    std::string note{};  ///< where the plan is from, if it is no count
  };
  std::vector<Entry> entries;

  int64_t planned() const;
  /// Of the entries that were.
  std::optional<int64_t> measured() const;
  /// The entry of a name; makes one.
  Entry& at(const std::string& name);
  /// A table for people.
  std::string to_text() const;
};

}  // namespace sherd
