// SPDX-License-Identifier: Apache-2.0
#include "plan/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "sherd/plan/program.h"

namespace sherd {
namespace {

using Sizes = std::vector<int64_t>;

struct Buffers {
  Sizes bytes;
  std::vector<Lifetime> lifetimes;
};

bool overlap(const Lifetime& a, const Lifetime& b) {
  return a.section == b.section && a.begin <= b.end && b.begin <= a.end;
}

/// The pairs of buffers that are needed at the same time, found the plain way.
std::set<std::pair<int32_t, int32_t>> rivals_in(const Buffers& buffers) {
  std::set<std::pair<int32_t, int32_t>> all;
  for (const auto& a : buffers.lifetimes) {
    for (const auto& b : buffers.lifetimes) {
      if (a.buffer != b.buffer && overlap(a, b)) all.emplace(a.buffer, b.buffer);
    }
  }
  return all;
}

/// The most bytes at any instant, by looking at every instant.
int64_t most_live(const Buffers& buffers) {
  std::map<std::pair<int32_t, int32_t>, std::set<int32_t>> live;  // by section and instruction
  for (const auto& [buffer, section, begin, end] : buffers.lifetimes) {
    for (int32_t i = begin; i <= end; ++i) live[{section, i}].insert(buffer);
  }
  int64_t most = 0;
  for (const auto& [instant, of] : live) {
    int64_t sum = 0;
    for (const int32_t buffer : of) sum += buffers.bytes[static_cast<size_t>(buffer)];
    most = std::max(most, sum);
  }
  return most;
}

/// Why the plan is none; empty if it is one.
std::string fault(const Buffers& buffers, const ArenaPlan& plan, const Sizes& pinned = {}) {
  const auto count = buffers.bytes.size();
  if (plan.offsets.size() != count) return "offsets are missing";
  std::vector<bool> needed(count);
  for (const auto& lifetime : buffers.lifetimes) {
    needed[static_cast<size_t>(lifetime.buffer)] = true;
  }
  int64_t top = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto name = "buffer " + std::to_string(i);
    if (!needed[i] || buffers.bytes[i] == 0) {
      if (plan.offsets[i] != kNone) return name + " has an offset that it doesn't need";
      continue;
    }
    if (plan.offsets[i] < 0) return name + " has no offset";
    if (!pinned.empty() && pinned[i] != kNone && plan.offsets[i] != pinned[i])
      return name + " moved";
    top = std::max(top, plan.offsets[i] + buffers.bytes[i]);
  }
  if (plan.bytes != top) return "the arena doesn't end where the last buffer does";
  if (plan.bound != most_live(buffers)) return "another bound";
  for (const auto& [one, other] : rivals_in(buffers)) {
    const auto a = static_cast<size_t>(one);
    const auto b = static_cast<size_t>(other);
    if (buffers.bytes[a] == 0 || buffers.bytes[b] == 0) continue;
    if (plan.offsets[a] < plan.offsets[b] + buffers.bytes[b] &&
        plan.offsets[b] < plan.offsets[a] + buffers.bytes[a]) {
      return "buffers " + std::to_string(one) + " and " + std::to_string(other) + " share bytes";
    }
  }
  return "";
}

ArenaPlan checked_plan(const Buffers& buffers, const Sizes& pinned = {}) {
  auto plan = plan_arena(buffers.bytes, buffers.lifetimes, pinned);
  EXPECT_EQ(fault(buffers, plan, pinned), "");
  return plan;
}

/// Units called in the order of their numbers, and backwards in the backward. Each lives from the
/// enter of the one `depth` before it to its own exit.
Buffers chain(const Sizes& bytes, int32_t depth) {
  Buffers buffers{bytes, {}};
  const auto units = static_cast<int32_t>(bytes.size());
  for (const int32_t section : {0, 1}) {
    for (int32_t k = 0; k < units; ++k) {
      const int32_t unit = section == 0 ? k : units - 1 - k;
      buffers.lifetimes.push_back({unit, section, 2 * std::max(k - depth, 0) + 1, 2 * k + 2});
    }
  }
  return buffers;
}

/// A chain with full gradients, which live from their unit's enter to the end of the next, and
/// perhaps a root around it all.
Buffers program(const Sizes& parameters, const Sizes& gradients, int32_t depth, int64_t root) {
  auto buffers = chain(parameters, depth);
  const auto units = static_cast<int32_t>(parameters.size());
  const int32_t last = 2 * units + 1;
  buffers.bytes.insert(buffers.bytes.end(), gradients.begin(), gradients.end());
  for (int32_t k = 0; k < units; ++k) {
    const int32_t unit = units - 1 - k;
    buffers.lifetimes.push_back({units + unit, 1, 2 * k + 1, std::min(2 * k + 4, last)});
  }
  if (root == 0) return buffers;
  buffers.bytes.insert(buffers.bytes.end(), {root, root});
  buffers.lifetimes.insert(
      buffers.lifetimes.end(),
      {{2 * units, 0, 0, last}, {2 * units, 1, 0, last}, {2 * units + 1, 1, 0, last}});
  return buffers;
}

/// The fewest bytes, by trying every offset of every buffer in a growing arena.
class EveryOffset {
 public:
  EveryOffset(const Buffers& buffers, const Sizes& pinned)
      : bytes_(buffers.bytes), pinned_(pinned), rivals_(rivals_in(buffers)) {
    std::set<int32_t> needed;
    for (const auto& lifetime : buffers.lifetimes) needed.insert(lifetime.buffer);
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (!needed.contains(static_cast<int32_t>(i))) bytes_[i] = 0;
    }
  }

  int64_t fewest() {
    int64_t height = 0;
    while (!fits(height)) ++height;
    return height;
  }

 private:
  bool fits(int64_t height) {
    const size_t next = offsets_.size();
    if (next == bytes_.size()) return true;
    if (bytes_[next] == 0) return with(0, height);
    if (!pinned_.empty() && pinned_[next] != kNone) {
      return pinned_[next] + bytes_[next] <= height && with(pinned_[next], height);
    }
    for (int64_t offset = 0; offset + bytes_[next] <= height; ++offset) {
      if (with(offset, height)) return true;
    }
    return false;
  }

  bool with(int64_t offset, int64_t height) {
    const auto next = offsets_.size();
    for (size_t i = 0; i < next && bytes_[next] > 0; ++i) {
      if (bytes_[i] == 0 ||
          !rivals_.contains({static_cast<int32_t>(i), static_cast<int32_t>(next)}))
        continue;
      if (offset < offsets_[i] + bytes_[i] && offsets_[i] < offset + bytes_[next]) return false;
    }
    offsets_.push_back(offset);
    const bool found = fits(height);
    offsets_.pop_back();
    return found;
  }

  Sizes bytes_;
  Sizes pinned_;
  std::set<std::pair<int32_t, int32_t>> rivals_;
  Sizes offsets_;
};

class Random {
 public:
  template <class T>
  T between(T low, T high) {
    return low + static_cast<T>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_{7};
};

Buffers few_buffers(Random& random) {
  Buffers buffers;
  const auto count = random.between(1, 6);
  const auto sections = random.between(1, 3);
  for (int32_t buffer = 0; buffer < count; ++buffer) {
    buffers.bytes.push_back(random.between(0, 5));
    for (int i = random.between(0, 3); i > 0; --i) {
      const auto begin = random.between(0, 9);
      buffers.lifetimes.push_back(
          {buffer, random.between(0, sections - 1), begin, begin + random.between(0, 3)});
    }
  }
  return buffers;
}

/// The same with other numbers.
Buffers renumbered(const Buffers& buffers, Random& random) {
  std::vector<int32_t> number(buffers.bytes.size());
  std::iota(number.begin(), number.end(), 0);
  std::shuffle(number.begin(), number.end(), random.engine());
  auto renumbered = buffers;
  for (size_t i = 0; i < number.size(); ++i) {
    renumbered.bytes[static_cast<size_t>(number[i])] = buffers.bytes[i];
  }
  for (auto& lifetime : renumbered.lifetimes) {
    lifetime.buffer = number[static_cast<size_t>(lifetime.buffer)];
  }
  return renumbered;
}

/// Of eight to forty buffers, whose sizes are of a few kinds or all different.
Buffers random_program(Random& random) {
  Sizes parameters(static_cast<size_t>(random.between(4, 19)));
  Sizes gradients;
  const bool of_kinds = random.between(0, 1) == 0;
  const int64_t wider = random.between(1, 2);
  for (auto& bytes : parameters) {
    bytes = of_kinds ? 16 * random.between(1, 4) : random.between(1, 200);
    gradients.push_back(random.between(0, 3) == 0 ? 0 : bytes * wider);
  }
  return renumbered(
      program(parameters, gradients, random.between(0, 3), random.between(0, 100)), random);
}

/// Some buffers stay where they are, with gaps between them.
Sizes some_pinned(const Buffers& buffers, Random& random) {
  auto pinned = plan_arena(buffers.bytes, buffers.lifetimes).offsets;
  for (auto& offset : pinned) {
    offset = offset == kNone || random.between(0, 1) == 0 ? kNone : offset * 2;
  }
  return pinned;
}

std::string words(const Buffers& buffers, const Sizes& pinned = {}) {
  try {
    plan_arena(buffers.bytes, buffers.lifetimes, pinned);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Arena, LayersAtDepthOneTakeNoMoreThanTheLargestNeighbours) {
  const auto three = checked_plan(chain({10, 20, 30}, 1));
  EXPECT_EQ(three.bytes, 50);
  EXPECT_EQ(three.bound, 50);
  EXPECT_EQ(checked_plan(chain({260, 740, 268}, 1)).bytes, 1008) << "units of several dtypes";
}

TEST(Arena, EqualLayersTakeOnePlaceMoreThanTheDepth) {
  for (const int32_t layers : {1, 2, 5, 9, 100}) {
    for (const int32_t depth : {0, 1, 2, 3}) {
      const auto plan = checked_plan(chain(Sizes(static_cast<size_t>(layers), 256), depth));
      const std::set<int64_t> places(plan.offsets.begin(), plan.offsets.end());
      EXPECT_EQ(std::ssize(places), std::min(layers, depth + 1));
      EXPECT_EQ(plan.bytes, plan.bound);
    }
  }
}

TEST(Arena, EqualLayersWithGradientsAndARootTakeNoMoreThanTheBound) {
  for (const int32_t depth : {0, 1, 2, 3}) {
    const auto plan = checked_plan(program(Sizes(48, 512), Sizes(48, 1024), depth, 256));
    EXPECT_EQ(plan.bytes, 512 * (depth + 1) + 1024 * 2 + 256 * 2);
    const std::set<int64_t> places(plan.offsets.begin(), plan.offsets.end());
    EXPECT_EQ(std::ssize(places), depth + 1 + 2 + 2);
  }
}

TEST(Arena, ThreeBuffersThatOverlapOnlyInPairsTakeThreePlaces) {
  const auto plan = checked_plan(
      {{8, 8, 8},
       {{0, 0, 0, 1}, {1, 0, 1, 2}, {1, 1, 0, 1}, {2, 1, 1, 2}, {2, 2, 5, 5}, {0, 2, 5, 5}}});
  EXPECT_EQ(plan.bytes, 24);
  EXPECT_EQ(plan.bound, 16);
}

TEST(Arena, SectionsAndInstantsThatOnlyTouchShareBytes) {
  EXPECT_EQ(checked_plan({{8, 8}, {{0, 0, 0, 3}, {1, 0, 4, 6}}}).bytes, 8);
  EXPECT_EQ(checked_plan({{8, 8}, {{0, 0, 0, 3}, {1, 0, 3, 6}}}).bytes, 16) << "ends are included";
  EXPECT_EQ(checked_plan({{8, 8}, {{0, 0, 0, 3}, {1, 1, 0, 3}}}).bytes, 8) << "another section";
}

TEST(Arena, CountsABufferOnceWhoseLifetimesOverlap) {
  const auto plan = checked_plan({{8, 4}, {{0, 0, 0, 3}, {0, 0, 2, 6}, {1, 0, 5, 5}}});
  EXPECT_EQ(plan.bound, 12);
  EXPECT_EQ(plan.bytes, 12);
}

TEST(Arena, GivesNoOffsetToWhatNeedsNone) {
  const auto plan = checked_plan({{8, 0, 8}, {{0, 0, 0, 3}, {1, 0, 0, 3}}});
  EXPECT_EQ(plan.offsets, (Sizes{0, kNone, kNone}));
  EXPECT_EQ(checked_plan({}).bytes, 0);
}

TEST(Arena, KeepsOffsetsThatBuffersHave) {
  const Buffers all_at_once{{8, 8, 8}, {{0, 0, 0, 3}, {1, 0, 0, 3}, {2, 0, 0, 3}}};
  EXPECT_EQ(checked_plan(all_at_once, {8, kNone, kNone}).bytes, 24);
  const auto plan = checked_plan(all_at_once, {4, kNone, 100});
  EXPECT_EQ(plan.bytes, 108);
  EXPECT_EQ(plan.offsets[1], 12) << "below the first there is too little";
  EXPECT_EQ(checked_plan({{8, 8}, {{0, 0, 0, 3}, {1, 0, 4, 6}}}, {4, 8}).bytes, 16)
      << "they take turns";
  EXPECT_EQ(checked_plan({{8, 8}, {{0, 0, 0, 3}}}, {kNone, 64}).bytes, 8) << "needed no more";
  Random random;
  for (int i = 0; i < 300; ++i) {
    const auto buffers = random_program(random);
    checked_plan(buffers, some_pinned(buffers, random));
  }
}

TEST(Arena, RefusesKeptOffsetsThatContradictEachOther) {
  const Buffers buffers{{8, 8, 8}, {{0, 0, 0, 3}, {1, 1, 0, 3}, {2, 0, 1, 4}}};
  const auto text = words(buffers, {16, 16, 20});
  EXPECT_NE(text.find("buffers 0 and 2"), std::string::npos) << text;
  EXPECT_EQ(words(buffers, {16, 16, 24}), "");
}

TEST(Arena, RefusesInvalidProblems) {
  EXPECT_NE(words({{8}, {{1, 0, 0, 3}}}), "") << "an unknown buffer";
  EXPECT_NE(words({{8}, {{0, 0, 3, 2}}}), "") << "a lifetime that ends before it begins";
  EXPECT_NE(words({{-8}, {{0, 0, 0, 3}}}), "");
  EXPECT_NE(words({{8}, {{0, 0, 0, 3}}}, {0, 0}), "") << "too many pinned offsets";
  EXPECT_NE(words({{8}, {{0, 0, 0, 3}}}, {-2}), "");
}

TEST(Arena, NeedsTheFewestBytesPossibleForAFewBuffers) {
  Random random;
  for (int i = 0; i < 10'000; ++i) {
    const auto buffers = few_buffers(random);
    const Sizes pinned = i % 4 == 0 ? some_pinned(buffers, random) : Sizes{};
    ASSERT_EQ(checked_plan(buffers, pinned).bytes, EveryOffset(buffers, pinned).fewest())
        << "case " << i;
  }
}

TEST(Arena, NeedsLittleMoreThanTheBoundForPrograms) {
  Random random;
  double worst = 0;
  double sum = 0;
  int at_bound = 0;
  constexpr int kCases = 10'000;
  for (int i = 0; i < kCases; ++i) {
    const auto plan = checked_plan(random_program(random));
    const auto ratio = static_cast<double>(plan.bytes) / static_cast<double>(plan.bound);
    ASSERT_LE(ratio, 1.25) << "case " << i;
    worst = std::max(worst, ratio);
    sum += ratio;
    at_bound += plan.bytes == plan.bound ? 1 : 0;
  }
  RecordProperty("worst", std::to_string(worst));
  RecordProperty("mean", std::to_string(sum / kCases));
  std::cout << "bytes over bound: worst " << worst << ", mean " << sum / kCases << ", none in "
            << at_bound << " of " << kCases << "\n";
}

TEST(Arena, IsTheSameOnEveryRankWhateverTheOrderOfLifetimes) {
  Random random;
  for (int i = 0; i < 200; ++i) {
    auto buffers = random_program(random);
    const auto plan = plan_arena(buffers.bytes, buffers.lifetimes);
    EXPECT_EQ(plan_arena(buffers.bytes, buffers.lifetimes).offsets, plan.offsets);
    std::shuffle(buffers.lifetimes.begin(), buffers.lifetimes.end(), random.engine());
    EXPECT_EQ(plan_arena(buffers.bytes, buffers.lifetimes).offsets, plan.offsets);
  }
}

}  // namespace
}  // namespace sherd
