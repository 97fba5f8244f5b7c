// SPDX-License-Identifier: Apache-2.0
#include "sherd/buffer/dbuffer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "buffer/busy_stream.h"
#include "ranks/rank_world.h"

namespace sherd {
namespace {

using testing::busy_stream;
using testing::test_world;
using testing::with_stream;
using enum Spread;

at::TensorOptions on_device(at::ScalarType dtype = at::kFloat) {
  return at::TensorOptions().dtype(dtype).device(test_world().device());
}

/// One mesh for all tests: making one is collective, and costs communicators.
std::optional<Mesh>& mesh_slot() {
  static std::optional<Mesh> made;
  return made;
}
const Mesh& mesh() {
  return *mesh_slot();
}

const DataAxes kTwoAxes{"dp", "dp_outer"};

std::vector<ParameterSpec> parameters(bool one_segment) {
  const auto granule = one_segment ? Granule::element() : Granule::rows();
  return {
      {"weight", {6, 7}, granule},
      {"scalar", {}, granule},
      {"bias", {5}, Granule::element()},
      {"empty", {0, 3}, granule},
      {"wide", {4, 12}, granule}};
}

std::shared_ptr<const Layout> make_layout(bool one_segment) {
  return std::make_shared<Layout>(
      Layout::build(parameters(one_segment), {.shards = test_world().size(), .element_size = 2}));
}

DBuffer blank(
    std::shared_ptr<const Layout> layout, Spreads spreads, at::ScalarType dtype = at::kFloat) {
  const int64_t numel = DBuffer::numel_for(*layout, spreads, mesh(), kTwoAxes);
  return {std::move(layout), spreads, mesh(), kTwoAxes, at::full({numel}, -99, on_device(dtype))};
}

/// Element e of parameter p as `rank` would write it.
at::Tensor values(int64_t parameter, int64_t numel, double rank) {
  return at::arange(numel, on_device()) + 100.0 * static_cast<double>(parameter + 1) +
         1000.0 * rank;
}

void fill(DBuffer& buffer, double rank) {
  for (int64_t p = 0; p < std::ssize(buffer.layout().parameters()); ++p) {
    const auto piece = buffer.layout().held_by(buffer.part(), p);
    buffer.held(p).copy_(
        values(p, buffer.layout().numel(p), rank).narrow(0, piece.begin, piece.length));
  }
  buffer.mark_written();
}

/// Whether every element that this rank holds is what the ranks' values, summed with these weights,
/// give.
void expect_values(const DBuffer& buffer, double weight, double rank_sum) {
  for (int64_t p = 0; p < std::ssize(buffer.layout().parameters()); ++p) {
    const auto piece = buffer.layout().held_by(buffer.part(), p);
    const auto base = values(p, buffer.layout().numel(p), 0) * weight + 1000.0 * rank_sum;
    const auto expected = base.narrow(0, piece.begin, piece.length);
    EXPECT_TRUE(at::allclose(buffer.held(p).to(at::kFloat), expected, 1e-6)) << "parameter " << p;
  }
}

class DBufferTest : public ::testing::TestWithParam<bool> {
 public:
  static void SetUpTestSuite() {
    const int64_t outer = test_world().size() % 2 == 0 ? 2 : 1;
    const int64_t inner = test_world().size() / outer;
    mesh_slot().emplace(test_world(), std::vector<Axis>{{"dp_outer", outer}, {"dp", inner}});
  }
  static void TearDownTestSuite() { mesh_slot().reset(); }

 protected:
  std::shared_ptr<const Layout> layout = make_layout(GetParam());
};

TEST_P(DBufferTest, ShowsParametersInTheirShapes) {
  auto full = blank(layout, {replicate, replicate});
  fill(full, 0);
  for (int64_t p = 0; p < 5; ++p) {
    const auto& shape = layout->parameters()[static_cast<size_t>(p)].shape;
    EXPECT_EQ(full.view(p).sizes(), at::IntArrayRef(shape));
    EXPECT_TRUE(at::equal(full.view(p).flatten(), values(p, layout->numel(p), 0)));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(full.view(p).const_data_ptr()) % 16, 0u);
  }
}

TEST_P(DBufferTest, GathersShardsAxisByAxis) {
  auto fine = blank(layout, {shard, shard});
  auto coarse = blank(layout, {shard, replicate});
  auto full = blank(layout, {replicate, replicate});
  fill(fine, 0);
  fine.redistribute(coarse).synchronize();
  expect_values(coarse, 1, 0);
  coarse.redistribute(full).synchronize();
  expect_values(full, 1, 0);
}

TEST_P(DBufferTest, ReducesPartialsAxisByAxisToTheMean) {
  auto partial_both = blank(layout, {partial, partial});
  auto inner_done = blank(layout, {shard, partial});
  auto done = blank(layout, {shard, shard});
  fill(partial_both, static_cast<double>(test_world().rank()));
  const RedistributeOptions mean{.reduction = Reduction::mean()};
  partial_both.redistribute(inner_done, mean).synchronize();
  inner_done.redistribute(done, mean).synchronize();
  expect_values(done, 1, static_cast<double>(test_world().size() - 1) / 2);
}

TEST_P(DBufferTest, AllReducesInPlaceAndApart) {
  auto source = blank(layout, {partial, replicate});
  auto apart = blank(layout, {replicate, replicate});
  const double coordinate = static_cast<double>(mesh().coordinate("dp"));
  const double inner = static_cast<double>(mesh().size("dp"));
  fill(source, coordinate);
  source.redistribute(apart, {.reduction = Reduction::scaled_sum(0.5)}).synchronize();
  expect_values(apart, inner / 2, inner * (inner - 1) / 4);
  DBuffer same(layout, {replicate, replicate}, mesh(), kTwoAxes, source.storage());
  source.redistribute(same, {.reduction = Reduction::scaled_sum(0.5)}).synchronize();
  expect_values(same, inner / 2, inner * (inner - 1) / 4);
}

TEST_P(DBufferTest, SlicesWithoutCommunication) {
  auto full = blank(layout, {replicate, replicate});
  auto coarse = blank(layout, {shard, replicate});
  auto fine = blank(layout, {shard, shard});
  fill(full, 0);
  full.redistribute(coarse).synchronize();
  coarse.redistribute(fine).synchronize();
  expect_values(coarse, 1, 0);
  expect_values(fine, 1, 0);
}

TEST_P(DBufferTest, WorksInPlaceOnlyWhereThatIsSafe) {
  auto full = blank(layout, {replicate, replicate});
  const int64_t numel = DBuffer::numel_for(*layout, {shard, replicate}, mesh(), kTwoAxes);
  const auto own = full.storage().narrow(0, mesh().coordinate("dp") * numel, numel);
  DBuffer inside(layout, {shard, replicate}, mesh(), kTwoAxes, own);
  if (layout->segments().size() == 1) {
    fill(inside, 0);
    inside.redistribute(full).synchronize();
    expect_values(full, 1, 0);
    DBuffer contributions(layout, {partial, replicate}, mesh(), kTwoAxes, full.storage());
    contributions.redistribute(inside).synchronize();
    expect_values(inside, static_cast<double>(mesh().size("dp")), 0);
    DBuffer shared(layout, {replicate, replicate}, mesh(), kTwoAxes, full.storage());
    shared.redistribute(inside).synchronize();
    expect_values(inside, static_cast<double>(mesh().size("dp")), 0);
  } else if (mesh().size("dp") > 1) {
    EXPECT_THROW(inside.redistribute(full), c10::ValueError);
  }
  if (mesh().size("dp") > 1) {
    // Shifted by a few elements: input and output would alias.
    const auto wrong = full.storage().narrow(0, mesh().coordinate("dp") == 0 ? 4 : 0, numel);
    DBuffer aliased(layout, {shard, replicate}, mesh(), kTwoAxes, wrong);
    EXPECT_THROW(aliased.redistribute(full), c10::ValueError);
    DBuffer contributions(layout, {partial, replicate}, mesh(), kTwoAxes, full.storage());
    EXPECT_THROW(contributions.redistribute(aliased), c10::ValueError);
    EXPECT_THROW(full.redistribute(aliased), c10::ValueError);
  }
}

TEST_P(DBufferTest, StillScalesOnAnAxisOfOneRank) {
  const Mesh one(test_world(), {{"one", 1}, {"dp", test_world().size()}});
  const DataAxes axes{"dp", "one"};
  const auto make = [&](Spreads spreads) {
    const int64_t numel = DBuffer::numel_for(*layout, spreads, one, axes);
    return DBuffer(layout, spreads, one, axes, at::full({numel}, -99, on_device()));
  };
  auto source = make({shard, partial});
  auto target = make({shard, replicate});
  fill(source, 0);
  source.redistribute(target, {.reduction = Reduction::scaled_sum(3)}).synchronize();
  expect_values(target, 3, 0);
}

TEST_P(DBufferTest, RunsWhollyOnTheGivenStream) {
  // On CPU streams mean nothing, and the values must be right all the same.
  auto source = blank(layout, {partial, replicate});
  auto joined = blank(layout, {replicate, replicate});
  auto sliced = blank(layout, {shard, replicate});
  RedistributeOptions options;
  if (test_world().device().is_cuda()) options.stream = busy_stream(test_world().device());
  with_stream(options.stream, [&] { fill(source, 0); });  // late, on that stream
  source.redistribute(joined, options).wait();
  joined.redistribute(sliced, options).synchronize();
  const double inner = static_cast<double>(mesh().size("dp"));
  expect_values(joined, inner, 0);
  expect_values(sliced, inner, 0);
}

TEST_P(DBufferTest, CastsAndCountsWrites) {
  auto main = blank(layout, {shard, replicate});
  auto model = blank(layout, {shard, replicate}, at::kBFloat16);
  EXPECT_EQ(model.version(), 0);
  fill(main, 0);
  EXPECT_EQ(main.version(), 1);
  main.cast(model);
  EXPECT_EQ(model.version(), 1);
  EXPECT_EQ(main.version(), 1);
  EXPECT_TRUE(at::equal(model.storage(), main.storage().to(at::kBFloat16)));
  auto full = blank(layout, {replicate, replicate}, at::kBFloat16);
  model.redistribute(full).synchronize();
  EXPECT_EQ(full.version(), 1);
  EXPECT_THROW(main.redistribute(full), c10::ValueError) << "dtypes differ";
}

TEST_P(DBufferTest, RefusesInWords) {
  auto fine = blank(layout, {shard, shard});
  auto full = blank(layout, {replicate, replicate});
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  const auto says = [](const std::string& text, const char* word) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << text << "' should say '" << word << "'";
  };
  says(refusal([&] { fine.redistribute(full); }), "one at a time");
  says(refusal([&] { full.redistribute(full); }), "nothing changes");
  says(refusal([&] { blank(layout, {replicate, shard}); }), "sharded over the outer axis");
  const int64_t numel = layout->full_size();
  const auto storage = at::zeros({numel + 16}, on_device());
  says(
      refusal([&] {
        DBuffer(layout, {replicate, replicate}, mesh(), kTwoAxes, storage);
      }),
      "needs");
  says(
      refusal([&] {
        DBuffer(layout, {replicate, replicate}, mesh(), kTwoAxes, storage.narrow(0, 1, numel));
      }),
      "16 bytes");
  says(
      refusal([&] {
        DBuffer(layout, {shard, partial}, mesh(), {"dp", ""}, storage);
      }),
      "none is named");
  if (fine.part().count > 1) says(refusal([&] { fine.view(0); }), "'weight' has no full view");
  auto partial_inner = blank(layout, {partial, replicate});
  if (mesh().size("dp") > 1)
    says(refusal([&] { full.redistribute(partial_inner); }), "can't become");
}

INSTANTIATE_TEST_SUITE_P(
    Segments, DBufferTest, ::testing::Values(true, false), [](const auto& test) {
      return test.param ? "One" : "Several";
    });

}  // namespace
}  // namespace sherd
