// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

namespace sherd::testing {

/// The numbers of levels of some factors, such as placement, optimizer, recompute.
using Factors = std::vector<size_t>;
/// A level of each factor.
using Combination = std::vector<size_t>;

/// Whether everything is to be tested that can be: `./sherd test --all`.
inline bool test_all() {
  const char* value = std::getenv("SHERD_TEST_ALL");
  return value != nullptr && std::string_view(value) == "1";
}

/// A level of one factor with a level of another.
using LevelPair = std::tuple<size_t, size_t, size_t, size_t>;

/// The pairs that a combination has.
inline std::set<LevelPair> pairs_of(const Combination& combination) {
  std::set<LevelPair> pairs;
  for (size_t a = 0; a < combination.size(); ++a) {
    for (size_t b = a + 1; b < combination.size(); ++b) {
      pairs.emplace(a, combination[a], b, combination[b]);
    }
  }
  return pairs;
}

/// Every combination.
inline std::vector<Combination> full_product(const Factors& factors) {
  std::vector<Combination> result{{}};
  for (const size_t levels : factors) {
    std::vector<Combination> longer;
    for (const auto& head : result) {
      for (size_t level = 0; level < levels; ++level) {
        longer.push_back(head);
        longer.back().push_back(level);
      }
    }
    result = std::move(longer);
  }
  return result;
}

/// A few combinations with every pair of levels of any two factors, the same ones every time:
/// always the one that has most of the pairs that are still missing.
inline std::vector<Combination> cover_pairs(const Factors& factors) {
  std::set<LevelPair> missing;
  const auto all = full_product(factors);
  for (const auto& combination : all) missing.merge(pairs_of(combination));
  std::vector<Combination> result;
  while (!missing.empty()) {
    const Combination* best = nullptr;
    size_t most = 0;
    for (const auto& combination : all) {
      size_t found = 0;
      for (const auto& pair : pairs_of(combination)) found += missing.count(pair);
      if (found > most) {
        most = found;
        best = &combination;
      }
    }
    for (const auto& pair : pairs_of(*best)) missing.erase(pair);
    result.push_back(*best);
  }
  return result;
}

/// All of them, or those that cover every pair, as is asked for.
inline std::vector<Combination> combinations(const Factors& factors) {
  return test_all() ? full_product(factors) : cover_pairs(factors);
}

}  // namespace sherd::testing
