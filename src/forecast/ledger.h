// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// The note of an entry that can't be counted in advance.
inline constexpr const char* kAssumed = "assumed";

/// The uses of a device's memory by name: bytes as planned before the first step, and as measured.
struct SHERD_API Ledger {
  /// One use of memory.
  struct Entry {
    std::string name;
    int64_t planned = 0;                ///< planned bytes
    std::optional<int64_t> measured{};  ///< measured bytes; empty: not measured
    std::string note{};                 ///< source of `planned`, if it was not counted
  };
  std::vector<Entry> entries;

  /// Returns the sum of the planned bytes.
  int64_t planned() const;
  /// Returns the sum of those that were counted, and not assumed.
  int64_t counted() const;
  /// Returns the sum of the measured entries; nothing if none was measured.
  std::optional<int64_t> measured() const;
  /// Returns the entry of a name; adds one if there is none.
  Entry& at(const std::string& name);
  /// Returns a table of all entries and their total.
  std::string to_text() const;
};

}  // namespace sherd
