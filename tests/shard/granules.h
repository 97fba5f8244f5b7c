// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "shard/glob.h"
#include "shard/parity.h"

namespace sherd::testing {

/// Where the parameters of a model may be cut, by name; the last rule that matches counts.
struct GranuleCase {
  std::string name;
  std::vector<ParameterRule> rules;
};

inline const std::vector<GranuleCase>& all_granules() {
  static const std::vector<GranuleCase> all{
      {"element", {}},
      {"rows", {{.match = "*", .granule = Granule::rows()}}},
      {"block", {{.match = "*", .granule = Granule::block(5)}}},
      {"whole", {{.match = "*", .granule = Granule::whole()}}},
      // Several segments in one group.
      {"mixed",
       {{.match = "*", .granule = Granule::rows(2)},
        {.match = "*bias", .granule = Granule::block(3)},
        {.match = "*uneven", .granule = Granule::block(7)},
        {.match = "*weight1", .granule = Granule::element()},
        {.match = "*up.weight", .granule = Granule::whole()},
        {.match = "*weight3", .granule = Granule::whole()},
        {.match = "*lora_a", .granule = Granule::whole()}}}};
  return all;
}

/// Adds the rules that match a parameter of the model; others would be refused.
inline void add_granules(
    UnitOptions& options, const GranuleCase& granules, const torch::nn::Module& model) {
  const auto names = model.named_parameters().keys();
  for (const auto& rule : granules.rules) {
    const bool matches = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches_glob(rule.match, name);
    });
    if (matches) options.rules.push_back(rule);
  }
}

/// Asserts that this rank's elements of every parameter are whole granules, but for the last one of
/// a parameter whose size is no multiple.
inline void expect_granules(
    const NamedTensors& pieces, const NamedTensors& whole, const GranuleCase& granules) {
  for (const auto& [name, piece] : pieces) {
    auto granule = Granule::element();
    for (const auto& rule : granules.rules) {
      if (matches_glob(rule.match, name)) granule = *rule.granule;
    }
    const auto found = std::find_if(
        whole.begin(), whole.end(), [&](const auto& other) { return other.first == name; });
    ASSERT_NE(found, whole.end()) << name;
    const auto sizes = found->second.sizes();
    const int64_t elements = granule.elements({sizes.begin(), sizes.end()});
    const int64_t rest = piece.numel() % elements;
    EXPECT_TRUE(rest == 0 || rest == found->second.numel() % elements)
        << name << ": " << piece.numel() << " elements, with granules of " << elements;
  }
}

}  // namespace sherd::testing
