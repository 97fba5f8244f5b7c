// SPDX-License-Identifier: Apache-2.0
#include "plan/example_programs.h"

#include "plan/program_examples.h"

namespace sherd::testing {
namespace {

/// How units are called, whatever their placement.
struct Structure {
  std::string name;
  int units = 3;
  CallOrder order;
  int64_t depth = 1;
  void (*adapt)(std::vector<UnitSpec>&) = [](std::vector<UnitSpec>&) {};
};

void stage(std::vector<UnitSpec>& units) {
  for (auto& unit : units) {
    unit.groups.front().reduces_in_place = false;
    unit.groups.front().bytes = {2, 4, 4, 2};
    unit.groups.front().shares_weight = false;
  }
}

void keep_first(std::vector<UnitSpec>& units) {
  units[1].keep_gathered = true;
}

/// Two groups a unit, one of them frozen, none as large as another.
void add_groups(std::vector<UnitSpec>& units) {
  int64_t elements = 32;
  for (auto& unit : units) {
    auto frozen = unit.groups.front();
    frozen.name = unit.name + ".frozen";
    frozen.trainable = false;
    auto second = unit.groups.front();
    second.name = unit.name + ".v";
    second.elements = elements *= 4;
    second.reduces_in_place = false;
    unit.groups.push_back(std::move(frozen));
    unit.groups.push_back(std::move(second));
  }
}

/// Weights in fp8: with transposed copies and one scale each, or encoded twice with gathered
/// scales.
void encode(std::vector<UnitSpec>& units) {
  for (size_t i = 0; i < units.size(); ++i) {
    auto& group = units[i].groups.front();
    group.bytes = {1, 4, 4, 4};
    group.shares_weight = false;
    group.encoding = i % 3 == 2 ? WeightEncoding{.block = 16, .scale_bytes = 1, .two_ways = true}
                                : WeightEncoding{.exchanged = 2, .transposes = true};
  }
  // A plain group beside it.
  auto plain = units[1].groups.front();
  plain.name = "u1.plain";
  plain.bytes = {2, 4, 4, 4};
  plain.encoding = {};
  units[1].groups.push_back(std::move(plain));
}

void encode_and_keep(std::vector<UnitSpec>& units) {
  encode(units);
  for (size_t i = 1; i < units.size(); ++i) units[i].keep_gathered = true;
}

void prefetch_by_hand(std::vector<UnitSpec>& units) {
  units[1].prefetch = {3, 2};
  units[0].prefetch = {1};
  units[3].backward_prefetch = {1, 2};
}

std::vector<Structure> structures() {
  const CallOrder twice{{0, true},  {1, true}, {1, false}, {2, true},
                        {2, false}, {1, true}, {1, false}, {0, false}};
  const CallOrder flat{{0, true}, {0, false}, {1, true}, {1, false}, {2, true}, {2, false}};
  const CallOrder together{{0, true},    {1, true, 0}, {1, false},
                           {2, true, 0}, {2, false},   {0, false}};
  const CallOrder nested{{0, true}, {1, true, 4}, {2, true, 4}, {2, false}, {1, false}, {0, false}};
  const CallOrder alone{{0, true}, {1, true, 0}, {1, false}, {2, true, 1}, {2, false}, {0, false}};
  return {
      {.name = "one unit", .units = 2, .order = under_a_root(2)},
      {.name = "no prefetch", .order = under_a_root(3), .depth = 0},
      {.name = "two units", .order = under_a_root(3)},
      {.name = "two ahead", .units = 4, .order = under_a_root(4), .depth = 2},
      {.name = "no root", .order = flat},
      {.name = "left out", .order = under_a_root(2)},
      {.name = "keeps gathered", .order = under_a_root(3), .adapt = keep_first},
      {.name = "called twice", .order = twice},
      {.name = "recomputed alone", .order = alone},
      {.name = "recomputed together", .order = together},
      {.name = "recomputed nested", .order = nested},
      {.name = "staged", .order = under_a_root(3), .adapt = stage},
      {.name = "several groups", .units = 2, .order = under_a_root(2), .adapt = add_groups},
      {.name = "prefetch by hand", .units = 4, .order = under_a_root(4), .adapt = prefetch_by_hand},
      {.name = "fp8", .order = under_a_root(3), .adapt = encode},
      {.name = "fp8, keeps gathered", .order = under_a_root(3), .adapt = encode_and_keep},
      {.name = "fp8, recomputed together", .order = together, .adapt = encode},
      {.name = "fp8, called twice", .order = twice, .adapt = encode},
      {.name = "fp8, two ahead", .units = 4, .order = under_a_root(4), .depth = 2, .adapt = encode},
      {.name = "fp8, no prefetch", .order = under_a_root(3), .depth = 0, .adapt = encode},
  };
}

std::vector<Spreading> spreadings() {
  using enum Strategy;
  std::vector<Spreading> all;
  for (const auto inner : {no_shard, optim, optim_grads, optim_grads_params}) {
    all.push_back(over_one_axis(inner));
  }
  all.push_back(over_two_axes(optim, no_shard));
  all.push_back(over_two_axes(optim, optim));
  all.push_back(over_two_axes(optim_grads, optim));
  all.push_back(over_two_axes(optim_grads, optim_grads));
  for (const auto outer : {no_shard, optim, optim_grads, optim_grads_params}) {
    all.push_back(over_two_axes(optim_grads_params, outer));
  }
  return all;
}

}  // namespace

std::vector<ExampleProgram> example_programs() {
  std::vector<ExampleProgram> all;
  for (const auto& spreading : spreadings()) {
    for (const auto& structure : structures()) {
      auto units = units_of(structure.units, spreading);
      structure.adapt(units);
      all.push_back(
          {spreading.name + ", " + structure.name,
           Program::build(std::move(units), structure.order, {.prefetch_depth = structure.depth})});
    }
  }
  return all;
}

}  // namespace sherd::testing
