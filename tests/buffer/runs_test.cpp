// SPDX-License-Identifier: Apache-2.0
#include "buffer/runs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

/// With granule rows the layout has several segments, with single elements one.
Layout make_layout(bool one_segment) {
  const auto granule = one_segment ? Granule::element() : Granule::rows();
  return Layout::build(
      {{"weight", {6, 7}, granule},
       {"scalar", {}, granule},
       {"bias", {5}, Granule::element()},
       {"empty", {0, 3}, granule},
       {"wide", {4, 12}, granule}},
      {.shards = 6, .element_size = 2});
}

/// The whole group: element e of parameter p is 100 · (p + 1) + e, and padding is -1.
PartBuffer make_whole(const Layout& layout) {
  PartBuffer whole{at::full({layout.full_size()}, -1, at::kFloat), {0, 1}};
  for (int64_t p = 0; p < std::ssize(layout.parameters()); ++p) {
    whole.storage.narrow(0, layout.offset(p), layout.numel(p))
        .copy_(at::arange(layout.numel(p)) + 100 * (p + 1));
  }
  return whole;
}

/// A part, copied out of a buffer that holds it.
PartBuffer copy_part(const Layout& layout, const PartBuffer& from, Part part) {
  PartBuffer result{at::full({layout.part_size(part.count)}, -99, at::kFloat), part};
  const auto transfers = pair_runs(runs(layout, result, part), runs(layout, from, part));
  for (const auto& [output, input] : transfers) output.copy_(input);
  return result;
}

void expect_parameters(const Layout& layout, const PartBuffer& buffer, Part part) {
  for (int64_t p = 0; p < std::ssize(layout.parameters()); ++p) {
    const auto piece = layout.held_by(part, p);
    const auto expected = at::arange(piece.begin, piece.begin + piece.length) + 100 * (p + 1);
    const auto found = held_run(layout, buffer, part, p);
    EXPECT_TRUE(at::equal(found, expected.to(at::kFloat)))
        << "parameter " << p << ", part " << part.index << " of " << part.count << " in part "
        << buffer.part.index << " of " << buffer.part.count;
    EXPECT_TRUE(found.numel() == 0 || found.is_alias_of(buffer.storage)) << "a copy";
  }
}

class RunsTest : public ::testing::TestWithParam<bool> {};

TEST_P(RunsTest, APartLiesInEveryBufferThatHoldsIt) {
  const auto layout = make_layout(GetParam());
  EXPECT_EQ(layout.segments().size() == 1, GetParam());
  const auto whole = make_whole(layout);
  for (int64_t coarse = 0; coarse < 2; ++coarse) {
    const auto half = copy_part(layout, whole, {coarse, 2});
    expect_parameters(layout, whole, {coarse, 2});
    expect_parameters(layout, half, {coarse, 2});
    for (int64_t fine = 3 * coarse; fine < 3 * coarse + 3; ++fine) {
      const auto sixth = copy_part(layout, half, {fine, 6});
      for (const auto* buffer : {&whole, &half, &sixth}) {
        expect_parameters(layout, *buffer, {fine, 6});
      }
    }
  }
}

TEST_P(RunsTest, PartsWrittenIntoAWholeBufferMakeItWhole) {
  const auto layout = make_layout(GetParam());
  const auto whole = make_whole(layout);
  PartBuffer gathered{at::full_like(whole.storage, -99), {0, 1}};
  for (int64_t index = 0; index < 6; ++index) {
    const auto part = copy_part(layout, whole, {index, 6});
    const auto transfers =
        pair_runs(runs(layout, gathered, part.part), runs(layout, part, part.part));
    EXPECT_EQ(transfers.size(), layout.segments().size());
    for (const auto& [output, input] : transfers) output.copy_(input);
  }
  EXPECT_TRUE(at::equal(gathered.storage, whole.storage));
}

TEST_P(RunsTest, APartOfAnotherBufferIsRefused) {
  const auto layout = make_layout(GetParam());
  const auto half = copy_part(layout, make_whole(layout), {0, 2});
  EXPECT_THROW(runs(layout, half, {5, 6}), c10::Error);
  EXPECT_THROW(runs(layout, half, {0, 1}), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Segments, RunsTest, ::testing::Values(true, false), [](const auto& test) {
  return test.param ? "One" : "Several";
});

}  // namespace
}  // namespace sherd
