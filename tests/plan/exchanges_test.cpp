// SPDX-License-Identifier: Apache-2.0
// Programs that know the exchanges of activations in their units.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "plan/example_programs.h"
#include "plan/price.h"
#include "plan/program_examples.h"
#include "plan/proof.h"
#include "plan/trace.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

using enum Strategy;
using testing::over_one_axis;
using testing::under_a_root;
using testing::units_of;

ExchangeSpec gather_spec(ExchangePass pass) {
  return {ExchangeKind::gather_rows, pass, "tp", "attention", 2, 1024, false};
}

ExchangeSpec experts_spec(ExchangePass pass) {
  return {ExchangeKind::all_to_all, pass, "ep", "experts", 4, 4096, true};
}

/// u1 gathers and exchanges rows of experts, and does so again in its backward; u2 does nothing.
std::vector<CallExchanges> example_exchanges() {
  using enum ExchangePass;
  return {
      {},
      {gather_spec(forward), experts_spec(forward), experts_spec(recompute),
       experts_spec(backward)},
      {}};
}

Program plain_program(int64_t passes = 1) {
  return Program::build(
      units_of(3, over_one_axis(no_shard)), under_a_root(3), {.micro_batches = passes});
}

Program exchanging_program(int64_t passes = 1) {
  return plain_program(passes).with_exchanges(example_exchanges());
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Exchanges, ChangeNeitherInstructionsNorMemory) {
  const auto plain = plain_program();
  const auto program = exchanging_program();
  EXPECT_EQ(program.exchanges(), example_exchanges());
  ASSERT_EQ(program.sections().size(), plain.sections().size());
  for (size_t i = 0; i < plain.sections().size(); ++i) {
    EXPECT_EQ(program.sections()[i]->instructions, plain.sections()[i]->instructions);
  }
  EXPECT_EQ(program.bytes().peak(), plain.bytes().peak());
  EXPECT_NO_THROW(prove(program));
}

TEST(Exchanges, AreFactsThatRanksMustAgreeOn) {
  const auto fingerprint = [](auto change) {
    auto exchanges = example_exchanges();
    change(exchanges);
    return plain_program().with_exchanges(exchanges).fingerprint();
  };
  const auto base = exchanging_program().fingerprint();
  EXPECT_EQ(fingerprint([](auto&) {}), base);
  EXPECT_NE(plain_program().fingerprint(), base);
  EXPECT_EQ(exchanging_program().with_exchanges({}).fingerprint(), plain_program().fingerprint());
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].kind = ExchangeKind::scatter_sum; }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].pass = ExchangePass::backward; }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].axis = "cp"; }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].purpose = "other"; }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].ranks = 4; }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].bytes += 1; }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1][0].routed = true; }), base);
  EXPECT_NE(fingerprint([](auto& of) { std::swap(of[1], of[2]); }), base);
  EXPECT_NE(fingerprint([](auto& of) { std::swap(of[1][0], of[1][1]); }), base);
  EXPECT_NE(fingerprint([](auto& of) { of[1].pop_back(); }), base);
  EXPECT_TRUE(says(
      exchanging_program().facts(),
      "call 1, forward: gather_rows along tp (2 ranks) for attention, 1.0 KiB (1024)"))
      << exchanging_program().facts();
}

TEST(Exchanges, ArePrintedBehindTheirUnitsCompute) {
  const auto text = exchanging_program(2).to_text();
  EXPECT_TRUE(says(text, "exchanges of activations along tp: 2 (2.0 KiB)\n")) << text;
  EXPECT_TRUE(says(text, "exchanges of activations along ep: 6 (24.0 KiB)\n")) << text;
  const auto of_section = [&](const std::string& name) {
    const auto begin = text.find("\n" + name + "\n");
    EXPECT_NE(begin, std::string::npos) << name;
    return text.substr(begin, text.find("\n\n", begin + 1) - begin);
  };
  const std::string experts =
      "exchange   all_to_all along ep (4 ranks) for experts, 4.0 KiB in the mean, by routing";
  for (const char* name : {"forward changed train", "forward evaluate"}) {
    const auto forward = of_section(name);
    const auto left = forward.find("leave u1");
    const auto compute = forward.find("compute    u1", left);
    const auto first = forward.find("exchange   gather_rows along tp", compute);
    EXPECT_LT(left, compute) << forward;
    EXPECT_LT(compute, first) << forward;
    EXPECT_LT(first, forward.find(experts)) << forward;
    EXPECT_LT(forward.find(experts), forward.find("enter u2")) << forward;
    EXPECT_FALSE(says(forward, "recomputed")) << forward;
  }
  const auto backward = of_section("backward first");
  EXPECT_TRUE(says(backward, experts + ", recomputed\n    compute   " + experts + "\n"))
      << backward;
  EXPECT_FALSE(says(backward, "gather_rows")) << backward;
}

TEST(Exchanges, AreInTheJson) {
  const auto program = exchanging_program(3);
  const auto json = nlohmann::json::parse(program.to_json());
  EXPECT_EQ(json["step"]["exchanges"]["ep"]["calls"], 9);
  EXPECT_EQ(json["step"]["exchanges"]["tp"]["bytes"], 3 * 1024);
  size_t with_some = 0;
  for (size_t i = 0; i < program.sections().size(); ++i) {
    for (const auto& boundary : json["sections"][i]["boundaries"]) {
      if (!boundary.contains("exchanges")) continue;
      ++with_some;
      EXPECT_EQ(boundary["unit"], "u1");
      const auto& last = boundary["exchanges"].back();
      const auto& name = program.sections()[i]->name;
      EXPECT_EQ(last["pass"], name.rfind("forward", 0) == 0 ? "forward" : "backward") << name;
      EXPECT_EQ(last["kind"], "all_to_all");
      EXPECT_EQ(last["axis"], "ep");
      EXPECT_EQ(last["purpose"], "experts");
      EXPECT_EQ(last["ranks"], 4);
      EXPECT_EQ(last["bytes"], 4096);
      EXPECT_EQ(last["routed"], true);
    }
  }
  EXPECT_EQ(with_some, program.sections().size() - 1) << "all but the update";
}

TEST(Exchanges, AreCountedByAxis) {
  const auto traffic = exchanging_program(3).traffic();
  EXPECT_EQ(traffic.exchanges.at("tp"), (Traffic{3, 3 * 1024}));
  EXPECT_EQ(traffic.exchanges.at("ep"), (Traffic{9, 9 * 4096}));
  auto others = traffic;
  others.exchanges.clear();
  EXPECT_EQ(others, plain_program(3).traffic());
}

TEST(Exchanges, AddTheTimeOfTheirAxisToTheirUnit) {
  const auto program = exchanging_program(2);
  Costs costs;
  costs.units.assign(3, {.forward = 1, .backward = 2});
  costs.network.axes["tp"] = {.latency = 0.5, .bandwidth = 1024};
  costs.network.axes["ep"] = {.latency = 0.25, .bandwidth = 3072};
  // One half of the gathered bytes, three quarters of the exchanged ones.
  const double once = 1.0 + 3 * 1.25;
  for (const bool overlaps : {true, false}) {
    costs.network.overlaps = overlaps;
    const auto plain = price(plain_program(2), costs);
    const auto step = price(program, costs);
    EXPECT_DOUBLE_EQ(step.seconds, plain.seconds + 2 * once);
    EXPECT_DOUBLE_EQ(step.compute, plain.compute);
    EXPECT_DOUBLE_EQ(step.exposed[1], plain.exposed[1] + 2 * once);
    EXPECT_DOUBLE_EQ(step.exposed[2], plain.exposed[2]);
    std::vector<ExchangeKind> kinds;
    for (const auto& span : step.spans) {
      if (!span.exchange) continue;
      kinds.push_back(*span.exchange);
      EXPECT_EQ(span.unit, 1);
      EXPECT_EQ(span.stream, Stream::compute);
      EXPECT_GT(span.end, span.begin);
    }
    EXPECT_EQ(kinds.size(), 8u);
    EXPECT_EQ(kinds.front(), ExchangeKind::gather_rows);
  }
}

/// The reduction of a unit's gradients waits for the end of its computing.
TEST(Exchanges, OfABackwardComeBeforeTheReduction) {
  const auto plain =
      Program::build(units_of(3, over_one_axis(optim_grads_params)), under_a_root(3), {});
  const auto program = plain.with_exchanges(example_exchanges());
  Costs costs;
  costs.units.assign(3, {.forward = 1, .backward = 2});
  costs.network.fallback = {.latency = 0.125, .bandwidth = 0};
  const auto step = price(program, costs);
  double exchanged = 0;
  for (const auto& span : step.spans) {
    if (span.exchange) exchanged = span.end;
    const bool reduces = span.action == Action::reduce && span.unit == 1;
    EXPECT_TRUE(!reduces || span.begin >= exchanged + 2) << span.begin;
  }
  EXPECT_DOUBLE_EQ(step.compute, price(plain, costs).compute);
}

TEST(Exchanges, AreInTheTrace) {
  const auto program = exchanging_program();
  Costs costs;
  costs.units.assign(3, {.forward = 1, .backward = 2});
  costs.network.fallback = {.latency = 0.5};
  const auto events = trace_events(program, price(program, costs));
  int found = 0;
  for (const auto& event : events) {
    if (event.name != "all_to_all u1" && event.name != "gather_rows u1") continue;
    ++found;
    EXPECT_EQ(event.category, "transfer");
    EXPECT_EQ(event.lane, "compute");
    EXPECT_DOUBLE_EQ(event.end - event.begin, 0.5);
  }
  EXPECT_EQ(found, 4);
}

TEST(Exchanges, OfAnEvaluationWithAnOrderOfItsOwnAreUnknown) {
  const CallOrder other{{0, true}, {2, true}, {2, false}, {1, true}, {1, false}, {0, false}};
  const auto units = units_of(3, over_one_axis(optim_grads_params));
  const auto program = Program::build(units, under_a_root(3), {}, {.evaluation = other})
                           .with_exchanges(example_exchanges());
  EXPECT_EQ(program.exchanges_in(program.forward({.train = true}), 1).size(), 2u);
  EXPECT_TRUE(program.exchanges_in(program.forward({.train = false}), 1).empty());
}

TEST(Exchanges, ThatFitNoProgramAreRefused) {
  const auto program = plain_program();
  auto short_of_one = example_exchanges();
  short_of_one.pop_back();
  EXPECT_THROW(program.with_exchanges(short_of_one), std::invalid_argument);
  auto negative = example_exchanges();
  negative[1][0].bytes = -1;
  EXPECT_THROW(program.with_exchanges(negative), std::invalid_argument);
  auto empty = example_exchanges();
  empty[1][0].ranks = 0;
  EXPECT_THROW(program.with_exchanges(empty), std::invalid_argument);
}

TEST(Exchanges, AreReadAsTheyWereWritten) {
  auto calls = example_exchanges();
  calls[2] = {{ExchangeKind::exchange_counts, ExchangePass::forward, "a \"b\"", "c\n", 3, 5}};
  EXPECT_EQ(read_exchanges(write_exchanges(calls)), calls);
  EXPECT_EQ(read_exchanges(write_exchanges({})), std::vector<CallExchanges>());
  for (const char* wrong :
       {"", "[[[1]]]", "[[[9,0,\"\",\"\",1,1,true]]]", "[[[0,3,\"\",\"\",1,1,true]]]"}) {
    EXPECT_THROW(read_exchanges(wrong), std::runtime_error) << wrong;
  }
}

/// Whatever the program: the proof stands, and a step is longer by its exchanges alone if nothing
/// runs beside them.
TEST(Exchanges, OfAnyProgramAddUpToTheirTime) {
  for (const auto& [name, program] : testing::example_programs()) {
    const auto calls = static_cast<size_t>(program.order().size() / 2);
    std::vector<CallExchanges> exchanges(calls);
    for (size_t i = 0; i < calls; ++i) {
      exchanges[i] = {gather_spec(ExchangePass::forward)};
      if (i % 2 == 0) exchanges[i].push_back(experts_spec(ExchangePass::backward));
    }
    const auto with = program.with_exchanges(exchanges);
    EXPECT_NO_THROW(prove(with)) << name;
    Costs costs;
    costs.units.assign(program.units().size(), {.forward = 1, .backward = 2});
    costs.network = {{}, {.latency = 0.25, .bandwidth = 0}, /*overlaps=*/false};
    const auto count = static_cast<double>(calls + (calls + 1) / 2);
    EXPECT_NEAR(price(with, costs).seconds, price(program, costs).seconds + 0.25 * count, 1e-9)
        << name;
  }
}

}  // namespace
}  // namespace sherd
