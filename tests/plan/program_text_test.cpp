// SPDX-License-Identifier: Apache-2.0
// What ranks compare and people read of a program.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "plan/program_examples.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

using enum Strategy;
using testing::over_one_axis;
using testing::over_two_axes;
using testing::under_a_root;
using testing::units_of;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ProgramText, HasAFingerprintOfAllThatRanksMustAgreeOn) {
  const auto units = units_of(3, over_one_axis(optim_grads_params));
  const auto build = [](std::vector<UnitSpec> of, CallOrder order, const ProgramOptions& options) {
    return Program::build(std::move(of), std::move(order), options).fingerprint();
  };
  const auto base = build(units, under_a_root(3), {});
  EXPECT_EQ(build(units, under_a_root(3), {}), base);
  const CallOrder other{{0, true}, {2, true}, {2, false}, {1, true}, {1, false}, {0, false}};
  EXPECT_NE(build(units, other, {}), base) << "another order";
  CallOrder recomputed = under_a_root(3);
  recomputed[1].recompute = 0;
  EXPECT_NE(build(units, recomputed, {}), base) << "another recompute";
  EXPECT_NE(build(units, under_a_root(3), {.micro_batches = 2}), base) << "more micro-batches";
  EXPECT_NE(build(units, under_a_root(3), {.prefetch_depth = 2}), base) << "another depth";
  const auto changed = [&](auto change) {
    auto copy = units;
    change(copy);
    return build(copy, under_a_root(3), {});
  };
  const Placement placement(optim_grads);
  EXPECT_NE(changed([](auto& of) { of[1].name = "other"; }), base);
  EXPECT_NE(changed([&](auto& of) { of[1].groups[0].placement = placement; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].groups[0].elements = 128; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].groups[0].axis_sizes.inner = 4; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].groups[0].bytes.reduce = 2; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].groups[0].layout = "rows"; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].groups[0].trainable = false; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].keep_gathered = true; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].prefetch = {2}; }), base);
  EXPECT_NE(changed([](auto& of) { of[1].backward_prefetch = {2}; }), base);
}

TEST(ProgramText, PrintsUnitsSlotsCountsAndWhatStaysGathered) {
  CallOrder order = under_a_root(3);
  order[1].recompute = order[3].recompute = 0;
  const auto units = units_of(3, over_one_axis(optim_grads_params));
  const auto text = Program::build(units, order, {.micro_batches = 3}).to_text();
  for (const char* part :
       {"3 units", "3 micro-batches", "18 all-gathers", "9 reduce-scatters", "0 all-reduces",
        "enter root", "leave u1", "u2.w", "slot parameters.0", "slot gradients.1",
        "reduce_scatter over inner", "released(parameters.1)", "backward first last", "peak"}) {
    EXPECT_TRUE(contains(text, part)) << part << " is missing in\n" << text;
  }
  EXPECT_TRUE(contains(text, "recompute u1 (gathered until its backward)")) << text;
  EXPECT_TRUE(contains(text, "recompute u2 (gathered until its backward)")) << text;
  EXPECT_FALSE(contains(text, "recompute root")) << text;
}

TEST(ProgramText, WritesItselfAsJson) {
  const auto units = units_of(3, over_two_axes(optim_grads_params, no_shard));
  const auto program = Program::build(units, under_a_root(3), {.micro_batches = 3});
  const auto json = nlohmann::json::parse(program.to_json());
  EXPECT_EQ(json["step"]["all_gather"]["calls"], 18);
  EXPECT_EQ(json["step"]["reduce_scatter"]["calls"], 9);
  EXPECT_EQ(json["step"]["all_reduce"]["calls"], 3);
  EXPECT_EQ(json["bytes"]["peak"], program.bytes().peak());
  EXPECT_EQ(json["slots"].size(), program.slots().size());
  ASSERT_EQ(json["sections"].size(), program.sections().size());
  for (size_t i = 0; i < program.sections().size(); ++i) {
    const auto& section = *program.sections()[i];
    const auto& written = json["sections"][i];
    EXPECT_EQ(written["name"], section.name);
    EXPECT_EQ(written["instructions"].size(), section.instructions.size());
    const auto traffic = traffic_of(section);
    std::map<std::string, int64_t> found;
    for (const auto& one : written["instructions"]) {
      if (one.contains("collective")) ++found[one["collective"]];
    }
    EXPECT_EQ(found["all_gather"], traffic.all_gather.calls);
    EXPECT_EQ(found["reduce_scatter"], traffic.reduce_scatter.calls);
    EXPECT_EQ(found["all_reduce"], traffic.all_reduce.calls);
  }
}

}  // namespace
}  // namespace sherd
