// SPDX-License-Identifier: Apache-2.0
#include "shard/unit/unmatched_patterns.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "shard/glob.h"
#include "shard/unit/unit.h"

namespace sherd {
namespace {

bool matches_any(const std::string& pattern, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return matches_glob(pattern, name);
  });
}

bool has_pattern(const std::vector<std::string>& patterns, const std::string& pattern) {
  return std::find(patterns.begin(), patterns.end(), pattern) != patterns.end();
}

bool has_rule(const Unit& unit, const std::string& pattern) {
  const auto& rules = unit.options().rules;
  return std::any_of(
      rules.begin(), rules.end(), [&](const ParameterRule& rule) { return rule.match == pattern; });
}

std::vector<std::string> names_in(const Unit& unit) {
  std::vector<std::string> names;
  for (const auto& group : unit.groups()) {
    for (size_t member = 0; member < group->size(); ++member) names.push_back(group->name(member));
  }
  return names;
}

void check_rule(const Unit& unit, const std::string& pattern, const std::vector<Unit*>& units) {
  const bool matched = std::any_of(units.begin(), units.end(), [&](const Unit* other) {
    return has_rule(*other, pattern) && !has_pattern(other->settings().unmatched().rules, pattern);
  });
  TORCH_CHECK_VALUE(
      matched, "[shard] the rule '", pattern, "' of unit '", unit.name(),
      "' matches none of its parameters, which are ", some_names(names_in(unit)),
      ", nor those of any other unit with the same rule: correct the pattern or remove the rule. "
      "Patterns match names within the unit, and parameters of a unit inside it are that unit's");
}

void check_ignored(const Unit& unit, const std::string& pattern, const std::vector<Unit*>& units) {
  const bool matched = std::any_of(units.begin(), units.end(), [&](const Unit* other) {
    return has_pattern(other->options().ignored, pattern) &&
           !has_pattern(other->settings().unmatched().ignored, pattern);
  });
  TORCH_CHECK_VALUE(
      matched, "[shard] '", pattern, "' in the `ignored` of unit '", unit.name(),
      "' matches none of its parameters, which are ", some_names(names_in(unit)),
      ", nor those of any other unit with the same pattern: correct the pattern or remove it. "
      "Patterns match names within the unit, and parameters of a unit inside it are that unit's");
}

}  // namespace

UnmatchedPatterns find_unmatched(
    const UnitOptions& options,
    const std::vector<std::string>& owned,
    const std::vector<std::string>& left_alone) {
  UnmatchedPatterns result;
  for (const auto& rule : options.rules) {
    if (!matches_any(rule.match, owned)) result.rules.push_back(rule.match);
  }
  for (const auto& pattern : options.ignored) {
    if (!matches_any(pattern, left_alone)) result.ignored.push_back(pattern);
  }
  return result;
}

void check_patterns_match(const std::vector<Unit*>& units) {
  for (const auto* unit : units) {
    const auto& unmatched = unit->settings().unmatched();
    for (const auto& pattern : unmatched.rules) check_rule(*unit, pattern, units);
    for (const auto& pattern : unmatched.ignored) check_ignored(*unit, pattern, units);
  }
}

}  // namespace sherd
