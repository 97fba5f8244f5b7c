// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "plan/layout_check.h"

namespace sherd {
namespace {

using testing::LayoutCheck;

std::vector<ParameterSpec> rows_of(std::vector<std::vector<int64_t>> shapes) {
  std::vector<ParameterSpec> specs;
  for (auto& shape : shapes) {
    specs.push_back({"p" + std::to_string(specs.size()), std::move(shape), Granule::rows()});
  }
  return specs;
}

TEST(Layout, PadsNothingWhereElementsDivideEvenly) {
  const auto layout =
      Layout::build({{"a", {8, 16}}, {"b", {16}}}, {.shards = 4, .element_size = 4});
  EXPECT_EQ(layout.full_size(), 8 * 16 + 16);
  EXPECT_EQ(layout.padding(), 0);
  EXPECT_EQ(layout.segments().size(), 1u);
  EXPECT_EQ(layout.offset(1), 128);
}

TEST(Layout, KeepsRowsWholeWithoutPaddingByTheirLeastCommonMultiple) {
  // A peer padded these shapes by 6,251 % at two ranks.
  for (const int64_t shards : {2, 8}) {
    for (const int64_t element_size : {2, 4}) {
      const auto layout = Layout::build(
          rows_of({{64, 4097}, {64, 4096}, {4096}}),
          {.shards = shards, .element_size = element_size});
      const double used = 64 * 4097 + 64 * 4096 + 4096;
      EXPECT_LT(static_cast<double>(layout.padding()) / used, 0.01)
          << shards << " shards, " << element_size << " bytes\n"
          << layout.to_text();
      EXPECT_EQ(LayoutCheck(layout).run(1), "");
    }
  }
}

TEST(Layout, FindsEveryElementOfAScalarAnEmptyAndAMatrix) {
  const auto layout =
      Layout::build({{"scalar", {}}, {"empty", {0, 7}}, {"matrix", {3, 5}}}, {.shards = 3});
  EXPECT_EQ(layout.numel(0), 1);
  EXPECT_EQ(layout.numel(1), 0);
  EXPECT_EQ(layout.held_by({0, 1}).size(), 2u);
  std::set<std::pair<int64_t, int64_t>> places;
  for (int64_t element = 0; element < 15; ++element) {
    const auto place = layout.locate(2, element, 3);
    places.emplace(place.index, place.offset);
  }
  EXPECT_EQ(places.size(), 15u);
}

TEST(Layout, DealsWholeTensorsToOneShardEach) {
  std::vector<ParameterSpec> specs;
  for (const int64_t rows : {100, 60, 60, 40, 20, 20}) {
    specs.push_back({"w", {rows, 4}, Granule::whole()});
  }
  const auto layout = Layout::build(specs, {.shards = 3});
  EXPECT_EQ(layout.part_size(3), 400);  // 100 | 60+40 | 60+20+20
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(layout.locate(i, 0, 3).index, layout.locate(i, layout.numel(i) - 1, 3).index);
  }
}

/// The least possible fullest shard, by trying every dealing.
int64_t best_fullest(const std::vector<int64_t>& sizes, std::vector<int64_t>& loads, size_t next) {
  if (next == sizes.size()) return *std::max_element(loads.begin(), loads.end());
  int64_t best = INT64_MAX;
  for (auto& load : loads) {
    load += sizes[next];
    best = std::min(best, best_fullest(sizes, loads, next + 1));
    load -= sizes[next];
    if (load == 0) break;  // empty shards are alike
  }
  return best;
}

TEST(Layout, FillsTheFullestShardToFourThirdsOfTheBestAtMost) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    const auto shards = static_cast<int64_t>(1 + random() % 4);
    std::vector<ParameterSpec> specs;
    std::vector<int64_t> sizes;
    for (size_t i = 0, count = 1 + random() % 8; i < count; ++i) {
      const auto numel = static_cast<int64_t>(1 + random() % 1000);
      specs.push_back({"w", {numel}, Granule::whole()});
      sizes.push_back((numel + 3) / 4 * 4);
    }
    const auto layout = Layout::build(specs, {.shards = shards, .element_size = 4});
    std::vector<int64_t> loads(static_cast<size_t>(shards), 0);
    const int64_t best = best_fullest(sizes, loads, 0);
    EXPECT_LE(layout.part_size(shards) * 3, best * 4);
    EXPECT_EQ(LayoutCheck(layout).run(random()), "");
  }
}

/// A list of shapes with all that models and people come up with.
std::vector<ParameterSpec> random_specs(std::mt19937_64& random) {
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  constexpr int64_t kPrimes[] = {2, 3, 7, 31, 127, 1021, 4093, 65537, 1000003};
  const auto dim = [&]() -> int64_t {
    switch (random() % 8) {
      case 0: return below(4);
      case 1: return kPrimes[below(std::size(kPrimes))];
      case 2: return int64_t{1} << below(15);
      case 3: return 1 + below(100000);
      default: return 1 + below(300);
    }
  };
  const bool one_kind = random() % 2 == 0;
  uint64_t kind = random() % 4;
  std::vector<ParameterSpec> specs;
  for (int64_t i = 0, count = below(13); i < count; ++i) {
    if (!one_kind) kind = random() % 4;
    ParameterSpec spec{"p" + std::to_string(i), {}, Granule::element()};
    int64_t numel = 1;  // at most 2^37, about ten times the largest tensor in use
    for (int64_t d = 0, dims = below(4); d < dims; ++d) {
      spec.shape.push_back(dim());
      numel *= spec.shape.back();
      if (numel > int64_t{1} << 37) spec.shape.back() = 1;
      if (numel > int64_t{1} << 37) break;
    }
    if (random() % 200 == 0) spec.shape = {int64_t{1} << 20, int64_t{1} << 17};
    if (kind == 1) spec.granule = Granule::rows(1 + below(3));
    if (kind == 2) spec.granule = Granule::block(random() % 2 ? 1 + below(500) : 1 << below(12));
    if (kind == 3) spec.granule = Granule::whole();
    specs.push_back(std::move(spec));
  }
  return specs;
}

TEST(Layout, KeepsItsPromisesForTwentyThousandRandomShapeLists) {
  std::mt19937_64 random(2026);
  int64_t cut_segments = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint64_t choice = random() % 4;
    const auto shards = static_cast<int64_t>(
        choice == 0   ? 1 + random() % 65536
        : choice == 1 ? uint64_t{1} << random() % 17
                      : 1 + random() % 16);
    const int64_t element_size = int64_t{1} << random() % 4;
    const auto specs = random_specs(random);
    const auto layout = Layout::build(specs, {.shards = shards, .element_size = element_size});
    const std::string broken = LayoutCheck(layout).run(random());
    ASSERT_EQ(broken, "") << "round " << round;
    cut_segments += std::ssize(layout.segments());
  }
  EXPECT_GT(cut_segments, 20000);  // the lists were not all empty
}

TEST(Layout, RefusesWhatItCannotLayOut) {
  EXPECT_THROW(Layout::build({{"w", {4, -1}}}, {}), std::invalid_argument);
  EXPECT_THROW(
      Layout::build({{"w", {int64_t{1} << 40, int64_t{1} << 40}}}, {}), std::invalid_argument);
  EXPECT_THROW(Layout::build({{"w", {4}}}, {.shards = 0}), std::invalid_argument);
  EXPECT_THROW(Layout::build({{"w", {4}}}, {.element_size = 3}), std::invalid_argument);
  EXPECT_THROW(Layout::build({{"w", {4}, Granule::block(0)}}, {}), std::invalid_argument);
  try {
    Layout::build({{"blocks.3.weight", {4, -1}}}, {});
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("blocks.3.weight"), std::string::npos);
  }
  const auto layout = Layout::build({{"w", {4}}}, {.shards = 4});
  EXPECT_THROW(layout.held_by({0, 3}), std::invalid_argument);
  EXPECT_THROW(layout.held_by({4, 4}), std::invalid_argument);
  EXPECT_THROW(layout.locate(0, 4, 4), std::invalid_argument);
  EXPECT_THROW(layout.locate(1, 0, 4), std::invalid_argument);
}

}  // namespace
}  // namespace sherd
