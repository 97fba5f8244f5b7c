// SPDX-License-Identifier: Apache-2.0
#include "forecast/ledger.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "configuration/byte_size.h"

namespace sherd {

int64_t Ledger::planned() const {
  int64_t sum = 0;
  for (const auto& entry : entries) sum += entry.planned;
  return sum;
}

int64_t Ledger::counted() const {
  int64_t sum = 0;
  for (const auto& entry : entries) sum += entry.note == kAssumed ? 0 : entry.planned;
  return sum;
}

std::optional<int64_t> Ledger::measured() const {
  std::optional<int64_t> sum;
  for (const auto& entry : entries) {
    if (entry.measured) sum = sum.value_or(0) + *entry.measured;
  }
  return sum;
}

Ledger::Entry& Ledger::at(const std::string& name) {
  const auto found = std::find_if(
      entries.begin(), entries.end(), [&](const Entry& entry) { return entry.name == name; });
  if (found != entries.end()) return *found;
  entries.push_back({name});
  return entries.back();
}

std::string Ledger::to_text() const {
  size_t widest = 5;
  for (const auto& entry : entries) widest = std::max(widest, entry.name.size());
  const bool has_measured = measured().has_value();
  std::ostringstream out;
  const auto row = [&](const std::string& name, const std::string& planned,
                       const std::string& found, const std::string& note) {
    out << "  " << std::left << std::setw(static_cast<int>(widest)) << name << std::right
        << std::setw(12) << planned;
    if (has_measured) out << std::setw(12) << found;
    if (!note.empty()) out << "  " << note;
    out << '\n';
  };
  row("bytes", "planned", "measured", "");
  for (const auto& entry : entries) {
    row(entry.name, byte_text(entry.planned), entry.measured ? byte_text(*entry.measured) : "-",
        entry.note);
  }
  row("total", byte_text(planned()), has_measured ? byte_text(*measured()) : "-", "");
  return out.str();
}

}  // namespace sherd
