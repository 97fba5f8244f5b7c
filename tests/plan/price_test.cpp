// SPDX-License-Identifier: Apache-2.0
#include "plan/price.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <tuple>

#include "plan/example_programs.h"
#include "plan/program_examples.h"
#include "plan/trace.h"

namespace sherd {
namespace {

using enum Strategy;
using testing::example_programs;
using testing::ExampleProgram;
using testing::over_one_axis;
using testing::over_two_axes;
using testing::Spreading;
using testing::under_a_root;
using testing::units_of;

constexpr double kRounding = 1e-9;
using Seconds = std::vector<double>;

/// Units that are called one after the other, with nothing around them.
Program in_a_row(int count, const Spreading& spreading, int64_t passes = 1, int64_t depth = 1) {
  CallOrder order;
  for (int32_t unit = 0; unit < count; ++unit) {
    order.push_back({unit, true});
    order.push_back({unit, false});
  }
  return Program::build(
      units_of(count, spreading), order, {.prefetch_depth = depth, .micro_batches = passes});
}

/// Each unit computes one second in the forward, two in the backward. The update takes one. The
/// gather of a unit of 256 bytes over two ranks takes `gather` seconds, and so does its reduction.
Costs simple_costs(const Program& program, double gather) {
  Costs costs;
  costs.units.assign(program.units().size(), {.forward = 1, .backward = 2});
  costs.update = 1;
  costs.network.axes["dp"].bandwidth = gather > 0 ? 128 / gather : 0;
  return costs;
}

double uniform(std::mt19937& random, double most) {
  return std::uniform_real_distribution<double>(0, most)(random);
}

Costs random_costs(const Program& program, std::mt19937& random) {
  Costs costs;
  for (size_t i = 0; i < program.units().size(); ++i) {
    costs.units.push_back({uniform(random, 2), uniform(random, 4)});
  }
  costs.update = uniform(random, 1);
  costs.network.axes["dp"] = {uniform(random, 0.5), 16 + uniform(random, 1000)};
  costs.network.fallback = {uniform(random, 0.5), 16 + uniform(random, 1000)};
  costs.memory_bandwidth = uniform(random, 1) < 0.5 ? 0 : 100 + uniform(random, 4000);
  return costs;
}

double computing(const Program& program, const Costs& costs) {
  double pass = 0;
  for (const auto& visit : program.order()) {
    const auto& times = costs.units[static_cast<size_t>(visit.unit)];
    if (visit.enter) pass += times.forward + times.backward;
  }
  return pass * static_cast<double>(program.options().micro_batches) + costs.update;
}

/// The examples, with one pass a step and with three.
std::vector<ExampleProgram> programs() {
  std::vector<ExampleProgram> all;
  for (auto& [name, program] : example_programs()) {
    auto options = program.options();
    options.micro_batches = 3;
    all.push_back(
        {name + ", three passes", Program::build(program.units(), program.order(), options)});
    all.push_back({name, std::move(program)});
  }
  return all;
}

// ---- by hand ------------------------------------------------------------------------------------

TEST(Price, AGatherOfHalfAUnitsTimeIsHiddenButForTheFirstOfAPassAndTheLastReduction) {
  const auto program = in_a_row(3, over_one_axis(optim_grads_params));
  const auto step = price(program, simple_costs(program, 0.5));
  // Forward from 0.5 to 3.5, backward from 4 to 10, the last reduction to 10.5, the update.
  EXPECT_DOUBLE_EQ(step.seconds, 11.5);
  EXPECT_DOUBLE_EQ(step.compute, 10);
  EXPECT_EQ(step.exposed, Seconds({1, 0, 0.5}));
  EXPECT_EQ(
      step.sections,
      std::vector<std::string>({"forward changed train", "backward first last", "update"}));
}

TEST(Price, AGatherOfTwiceAUnitsTimeIsExposedByTheDifference) {
  const auto program = in_a_row(3, over_one_axis(optim_grads_params));
  const auto step = price(program, simple_costs(program, 2));
  // Gathers of the forward end at 2, 4, 6: so the units compute from 2, 4, 6 to 7. In the backward
  // they end at 9, 11, 13, as does computing, from 9 to 15; the last reduction ends at 17.
  EXPECT_DOUBLE_EQ(step.seconds, 18);
  EXPECT_DOUBLE_EQ(step.compute, 10);
  EXPECT_EQ(step.exposed, Seconds({4, 1, 3}));
}

TEST(Price, WithoutPrefetchEveryGatherIsExposed) {
  const auto program = in_a_row(3, over_one_axis(optim_grads_params), 1, 0);
  const auto step = price(program, simple_costs(program, 0.5));
  EXPECT_DOUBLE_EQ(step.seconds, 10 + 6 * 0.5 + 0.5);
  EXPECT_EQ(step.exposed, Seconds({1.5, 1, 1}));
}

TEST(Price, ReductionsOfAllButTheLastPassRunBesideTheNextForward) {
  const auto program = in_a_row(3, over_one_axis(optim_grads_params), 3);
  const auto step = price(program, simple_costs(program, 0.5));
  EXPECT_DOUBLE_EQ(step.seconds, 3 * 10 + 0.5 + 1);
  EXPECT_EQ(step.exposed, Seconds({2, 0, 1.5}));
  EXPECT_EQ(step.sections.size(), 7u);
}

TEST(Price, TheOuterAxisHasALinkOfItsOwn) {
  const auto program = in_a_row(2, over_two_axes(optim_grads_params, no_shard));
  Costs costs;
  costs.units.assign(2, {.forward = 2, .backward = 4});
  costs.network.axes["dp"].bandwidth = 128;       // a gather takes 1 s
  costs.network.axes["dp_outer"].bandwidth = 32;  // the all-reduce of half a unit 4 s
  const auto step = price(program, costs);
  // The backward ends at 14, its last inner reduction at 15; outer ones run from 11, 15 to 19.
  EXPECT_DOUBLE_EQ(step.seconds, 19);
  EXPECT_EQ(step.exposed, Seconds({1 + 5, 1}));
  costs.network.axes.erase("dp_outer");
  EXPECT_DOUBLE_EQ(price(program, costs).seconds, 15) << "and no other link is used there";
}

TEST(Price, KernelsAndCopiesTakeTheTimeOfTheirBytes) {
  const auto extra = [](GroupSpec group, int64_t passes) {
    auto units = units_of(1, over_one_axis(optim));
    units.front().groups = {std::move(group)};
    const auto program =
        Program::build(std::move(units), {{0, true}, {0, false}}, {.micro_batches = passes});
    auto costs = simple_costs(program, 0);
    costs.network.overlaps = false;
    const double free = price(program, costs).seconds;
    costs.memory_bandwidth = 1;
    return price(program, costs).seconds - free;
  };
  auto group = units_of(1, over_one_axis(optim)).front().groups.front();
  group.bytes = {2, 4, 4, 2};
  group.reduces_in_place = group.shares_weight = false;
  EXPECT_DOUBLE_EQ(extra(group, 1), 64 * (4 + 2) + 32 * (2 + 4)) << "stage, and half comes back";
  group = units_of(1, over_one_axis(optim_grads_params)).front().groups.front();
  EXPECT_DOUBLE_EQ(extra(group, 1), 32 * (4 + 4));
  EXPECT_DOUBLE_EQ(extra(group, 2), 32 * (4 + 4) + 32 * (4 + 4 + 4)) << "the second adds";
  group.axis_sizes.inner = 1;
  EXPECT_DOUBLE_EQ(extra(group, 1), 2 * 2 * 256 + 64 * (4 + 4)) << "two gathers are copies";
}

// ---- whatever the program -----------------------------------------------------------------------

TEST(Price, WithoutANetworkAStepIsItsComputing) {
  std::mt19937 random(1);
  for (const auto& [name, program] : programs()) {
    auto costs = random_costs(program, random);
    costs.network = {};
    costs.memory_bandwidth = 0;
    const auto step = price(program, costs);
    EXPECT_NEAR(step.seconds, computing(program, costs), kRounding) << name;
    EXPECT_NEAR(step.exposed_total(), 0, kRounding) << name;
  }
}

TEST(Price, WhereTransfersNeedTheProcessorTimesAddUp) {
  for (const auto& [name, program] : programs()) {
    auto costs = simple_costs(program, 0);
    const Link link{.latency = 0.25, .bandwidth = 64};
    costs.network = {{}, link, false};
    const auto traffic = program.traffic();
    const auto calls =
        traffic.all_gather.calls + traffic.reduce_scatter.calls + traffic.all_reduce.calls;
    // Of two ranks each sends half of what is gathered or scattered.
    const auto sent =
        (traffic.all_gather.bytes + traffic.reduce_scatter.bytes) / 2 + traffic.all_reduce.bytes;
    const double transfers =
        static_cast<double>(calls) * link.latency + static_cast<double>(sent) / link.bandwidth;
    const auto step = price(program, costs);
    EXPECT_NEAR(step.seconds, computing(program, costs) + transfers, kRounding) << name;
    EXPECT_NEAR(step.exposed_total(), transfers, kRounding) << name;
    costs.network.overlaps = true;
    EXPECT_LE(price(program, costs).seconds, step.seconds) << name;
  }
}

TEST(Price, AStepIsComputingAndIdleTime) {
  std::mt19937 random(2);
  for (const auto& [name, program] : programs()) {
    auto costs = random_costs(program, random);
    for (const bool overlaps : {true, false}) {
      costs.network.overlaps = overlaps;
      const auto step = price(program, costs);
      EXPECT_NEAR(step.compute, computing(program, costs), kRounding) << name;
      EXPECT_NEAR(step.seconds, step.compute + step.exposed_total(), kRounding) << name;
      double waited = 0;
      for (const auto& span : step.spans) {
        const bool waits = span.action == Action::wait || span.action == Action::open ||
                           span.action == Action::drain ||
                           (overlaps && span.action == Action::exchange);
        if (waits) waited += span.end - span.begin;
      }
      EXPECT_NEAR(waited, overlaps ? step.exposed_total() : 0, kRounding) << name;
    }
  }
}

TEST(Price, SpansAreTheInstructionsOfTheStepAndThoseOfAStreamFollowOneAnother) {
  std::mt19937 random(3);
  for (const auto& [name, program] : programs()) {
    std::vector<std::tuple<Action, int32_t, int32_t>> issued;
    const int64_t passes = program.options().micro_batches;
    for (int64_t pass = 0; pass <= passes; ++pass) {
      const BackwardFlags flags{pass == 0, pass + 1 == passes, true};
      for (const auto* section :
           {&program.forward({.changed = pass == 0}), &program.backward(flags),
            &program.update()}) {
        if ((section == &program.update()) != (pass == passes)) continue;
        for (const auto& one : section->instructions) {
          issued.emplace_back(one.action, one.unit, one.group);
        }
      }
    }
    const auto step = price(program, random_costs(program, random));
    decltype(issued) seen;
    std::map<Stream, Span> last;
    for (const auto& span : step.spans) {
      seen.emplace_back(span.action, span.unit, span.group);
      EXPECT_GE(span.begin, last[span.stream].end) << name;
      EXPECT_GE(span.end, span.begin) << name;
      EXPECT_LE(span.end, step.seconds) << name;
      EXPECT_GE(span.section, last[span.stream].section) << name;
      last[span.stream] = span;
    }
    EXPECT_EQ(seen, issued) << name;
    EXPECT_EQ(std::ssize(step.sections), 2 * passes + 1) << name;
  }
}

TEST(Price, BuffersThatShareBytesAreNeverHeldAtOnce) {
  std::mt19937 random(4);
  for (const auto& [name, program] : programs()) {
    const auto& slots = program.slots();
    const auto step = price(program, random_costs(program, random));
    for (const auto& one : step.slot_spans) {
      const auto& mine = slots[static_cast<size_t>(one.slot)];
      const auto& own = program.slots_of(one.unit);
      const std::array wanted{own.parameters, own.transposed, one.slot};  // or in a stage
      EXPECT_EQ(one.slot, wanted[static_cast<size_t>(one.content)]) << name;
      for (const auto& other : step.slot_spans) {
        const auto& its = slots[static_cast<size_t>(other.slot)];
        if (&other == &one || mine.offset >= its.offset + its.bytes) continue;
        if (its.offset >= mine.offset + mine.bytes) continue;
        EXPECT_TRUE(one.begin >= other.end || other.begin >= one.end) << name << ' ' << mine.name;
      }
    }
  }
}

TEST(Price, ParametersAreHeldFromTheirGatherToTheirReleaseAndGradientsUntilTheyAreReduced) {
  const auto program = in_a_row(3, over_one_axis(optim_grads_params));
  const auto step = price(program, simple_costs(program, 0.5));
  std::vector<std::tuple<int32_t, bool, double, double>> held;
  for (const auto& one : step.slot_spans)
    held.emplace_back(one.unit, one.content == SlotContent::gradients, one.begin, one.end);
  std::sort(held.begin(), held.end());
  const decltype(held) expected{{0, false, 0, 1.5},   {0, false, 6, 10},  {0, true, 8, 10.5},
                                {1, false, 0.5, 2.5}, {1, false, 4, 8},   {1, true, 6, 8.5},
                                {2, false, 1.5, 3.5}, {2, false, 3.5, 6}, {2, true, 4, 6.5}};
  EXPECT_EQ(held, expected);
}

TEST(Price, ASlowerLinkNeverMakesAStepShorter) {
  std::mt19937 random(5);
  for (const auto& [name, program] : programs()) {
    auto costs = random_costs(program, random);
    costs.network.overlaps = uniform(random, 1) < 0.8;
    const double before = price(program, costs).seconds;
    auto& link = uniform(random, 1) < 0.5 ? costs.network.axes["dp"] : costs.network.fallback;
    link.latency += uniform(random, 0.5);
    link.bandwidth *= uniform(random, 1);
    EXPECT_GE(price(program, costs).seconds, before - kRounding) << name;
  }
}

// Where units nest, a gather ahead may stand in front of one that is needed sooner; and where
// gradients had the bytes that it takes, it waits for their reduction. So they are in a row here,
// and either equal or frozen.
TEST(Price, DeeperPrefetchNeverMakesAStepLonger) {
  std::mt19937 random(6);
  for (int round = 0; round < 60; ++round) {
    const int count = 3 + static_cast<int>(random() % 8);
    auto units = units_of(count, over_one_axis(optim_grads_params, 2 + random() % 3));
    for (auto& unit : units) {
      auto& group = unit.groups.front();
      group.trainable = round % 2 == 0;
      group.elements = 12 * (group.trainable ? 4 : 1 + random() % 40);
    }
    Costs costs;
    double before = std::numeric_limits<double>::infinity();
    for (const int64_t depth : {0, 1, 2, 3, 5}) {
      const auto program = Program::build(
          units, under_a_root(count), {.prefetch_depth = depth, .micro_batches = 1 + round % 3});
      if (depth == 0) costs = random_costs(program, random);
      const double seconds = price(program, costs).seconds;
      EXPECT_LE(seconds, before + kRounding) << "round " << round << ", depth " << depth;
      before = seconds;
    }
  }
}

TEST(Price, CostsThatDoNotFitAreRefusedInWords) {
  const auto program = in_a_row(2, over_one_axis(optim_grads_params));
  const auto refuse = [&](const Costs& costs, const std::string& words) {
    try {
      price(program, costs);
      ADD_FAILURE() << "not refused: " << words;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), words);
    }
  };
  auto costs = simple_costs(program, 1);
  costs.network.axes["dp"].latency = std::numeric_limits<double>::infinity();
  refuse(costs, "[plan.price] the latency of axis 'dp' is inf: give a finite number, at least 0");
  costs.units[1].backward = -1;
  refuse(costs, "[plan.price] the backward of 'u1' is -1: give a finite number, at least 0");
  costs.units.pop_back();
  refuse(costs, "[plan.price] times of 1 units for a program of 2: give one of each");
}

// ---- the trace ----------------------------------------------------------------------------------

TEST(Trace, ShowsWhatTakesTimeByStreams) {
  const auto program = in_a_row(2, over_one_axis(optim_grads_params));
  std::vector<std::tuple<std::string, std::string, std::string, double, double, int64_t>> seen;
  for (const auto& event : trace_events(program, price(program, simple_costs(program, 0.5)))) {
    seen.emplace_back(event.lane, event.category, event.name, event.begin, event.end, event.bytes);
  }
  const decltype(seen) expected{
      {"section", "section", "forward changed train", 0, 2.5, 0},
      {"section", "section", "backward first last", 2.5, 7.5, 0},
      {"section", "section", "update", 7.5, 8.5, 0},
      {"compute", "wait", "wait root", 0, 0.5, 0},
      {"compute", "compute", "compute root", 0.5, 1.5, 0},
      {"compute", "compute", "compute u1", 1.5, 2.5, 0},
      {"compute", "wait", "wait u1", 2.5, 3, 0},
      {"compute", "compute", "compute u1", 3, 5, 0},
      {"compute", "compute", "compute root", 5, 7, 0},
      {"compute", "wait", "drain", 7, 7.5, 0},
      {"compute", "compute", "update", 7.5, 8.5, 0},
      {"gather", "transfer", "gather root", 0, 0.5, 256},
      {"gather", "transfer", "gather u1", 0.5, 1, 256},
      {"gather", "transfer", "gather u1", 2.5, 3, 256},
      {"gather", "transfer", "gather root", 3, 3.5, 256},
      {"reduce", "transfer", "reduce u1", 5, 5.5, 256},
      {"reduce", "transfer", "reduce root", 7, 7.5, 256}};
  EXPECT_EQ(seen, expected);
}

TEST(Trace, ProcessesAreShownSideBySideInOneFile) {
  const std::string odd = "a \"quoted\" \\ name\nüber\x01";
  const std::vector<TraceProcess> processes{
      {"planned", {{odd, "transfer", "gather", 0.5, 1.25, 256}, {"b", "c", "compute", 0, 1, 0}}},
      {"real", {{"c", "compute", "compute", 1e-6, 3e-6, 0}}}};
  const auto expected = nlohmann::json::parse(R"([
    {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "planned"}},
    {"ph": "M", "pid": 1, "tid": 0, "name": "process_sort_index", "args": {"sort_index": 1}},
    {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "gather"}},
    {"ph": "M", "pid": 1, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
    {"ph": "X", "pid": 1, "tid": 1, "name": "a \"quoted\" \\ name\nüber\u0001", "cat": "transfer",
     "ts": 500000.0, "dur": 750000.0, "args": {"bytes": 256}},
    {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "compute"}},
    {"ph": "M", "pid": 1, "tid": 2, "name": "thread_sort_index", "args": {"sort_index": 2}},
    {"ph": "X", "pid": 1, "tid": 2, "name": "b", "cat": "c", "ts": 0.0, "dur": 1000000.0},
    {"ph": "M", "pid": 2, "tid": 0, "name": "process_name", "args": {"name": "real"}},
    {"ph": "M", "pid": 2, "tid": 0, "name": "process_sort_index", "args": {"sort_index": 2}},
    {"ph": "M", "pid": 2, "tid": 1, "name": "thread_name", "args": {"name": "compute"}},
    {"ph": "M", "pid": 2, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
    {"ph": "X", "pid": 2, "tid": 1, "name": "c", "cat": "compute", "ts": 1.0, "dur": 2.0}])");
  EXPECT_EQ(nlohmann::json::parse(chrome_trace(processes)).at("traceEvents"), expected);
  EXPECT_EQ(nlohmann::json::parse(chrome_trace({})).at("traceEvents").size(), 0u);
}

}  // namespace
}  // namespace sherd
