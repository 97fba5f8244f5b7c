// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "sherd/comm/world.h"

namespace sherd {
namespace {

/// Of a rank of 6. With granule rows the layout has several segments, with single elements one.
GroupLayout make_layout(bool one_segment) {
  const auto granule = one_segment ? Granule::element() : Granule::rows();
  const Mesh mesh(World::emulated({.size = 6}), {{"dp", 6}});
  const GroupTraits traits{.mesh = mesh, .axes = {"dp", ""}};
  return GroupLayout(
      traits, {{"weight", at::empty({6, 7}), granule},
               {"scalar", at::empty({}), granule},
               {"bias", at::empty({5}), Granule::element()},
               {"empty", at::empty({0, 3}), granule},
               {"wide", at::empty({4, 12}), granule}});
}

/// The whole group: element e of parameter p is 100 · (p + 1) + e, and padding is -1.
PartBuffer make_whole(const GroupLayout& layout) {
  PartBuffer whole{at::full({layout.flat().full_size()}, -1, at::kFloat), GroupLayout::whole()};
  for (size_t p = 0; p < layout.size(); ++p) {
    const auto view = layout.view(whole.storage, p);
    view.copy_((at::arange(view.numel()) + 100 * (static_cast<int64_t>(p) + 1)).view_as(view));
  }
  return whole;
}

/// A part, copied out of a buffer that holds it.
PartBuffer copy_part(const GroupLayout& layout, const PartBuffer& from, Part part) {
  PartBuffer result{at::full({layout.flat().part_size(part.count)}, -99, at::kFloat), part};
  const auto transfers = pair_ranges(layout.ranges(result, part), layout.ranges(from, part));
  for (const auto& [output, input] : transfers) output.copy_(input);
  return result;
}

void expect_parameters(const GroupLayout& layout, const PartBuffer& buffer, Part part) {
  const auto pieces = layout.pieces(buffer, part);
  ASSERT_EQ(pieces.size(), layout.size());
  for (int64_t p = 0; p < std::ssize(pieces); ++p) {
    const auto range = layout.flat().held_by(part, p);
    const auto expected = at::arange(range.begin, range.begin + range.length) + 100 * (p + 1);
    const auto& found = pieces[static_cast<size_t>(p)];
    EXPECT_TRUE(at::equal(found, expected.to(at::kFloat)))
        << "parameter " << p << ", part " << part.index << " of " << part.count << " in part "
        << buffer.part.index << " of " << buffer.part.count;
    EXPECT_TRUE(found.numel() == 0 || found.is_alias_of(buffer.storage)) << "a copy";
  }
}

class GroupLayoutTest : public ::testing::TestWithParam<bool> {};

TEST_P(GroupLayoutTest, APartLiesInEveryBufferThatHoldsIt) {
  const auto layout = make_layout(GetParam());
  EXPECT_EQ(layout.flat().segments().size() == 1, GetParam());
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

TEST_P(GroupLayoutTest, PartsWrittenIntoAWholeBufferMakeItWhole) {
  const auto layout = make_layout(GetParam());
  const auto whole = make_whole(layout);
  PartBuffer gathered{at::full_like(whole.storage, -99), GroupLayout::whole()};
  for (int64_t index = 0; index < 6; ++index) {
    const auto part = copy_part(layout, whole, {index, 6});
    const auto transfers =
        pair_ranges(layout.ranges(gathered, part.part), layout.ranges(part, part.part));
    EXPECT_EQ(transfers.size(), layout.flat().segments().size());
    for (const auto& [output, input] : transfers) output.copy_(input);
  }
  EXPECT_TRUE(at::equal(gathered.storage, whole.storage));
}

TEST_P(GroupLayoutTest, APartOfAnotherBufferIsRefused) {
  const auto layout = make_layout(GetParam());
  const auto half = copy_part(layout, make_whole(layout), {0, 2});
  EXPECT_THROW(layout.ranges(half, {5, 6}), c10::Error);
  EXPECT_THROW(layout.ranges(half, GroupLayout::whole()), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(
    Segments, GroupLayoutTest, ::testing::Values(true, false), [](const auto& test) {
      return test.param ? "One" : "Several";
    });

}  // namespace
}  // namespace sherd
