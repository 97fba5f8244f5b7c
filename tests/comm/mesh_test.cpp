// SPDX-License-Identifier: Apache-2.0
#include "sherd/comm/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>

#include "comm/expected.h"

namespace sherd {
namespace {

using testing::is_emulated;
using testing::on_device;
using testing::test_world;

/// Two axes for any world: the outer one has 2 ranks where that divides.
std::vector<Axis> two_axes() {
  const int64_t outer = test_world().size() % 2 == 0 ? 2 : 1;
  return {{"dp_outer", outer}, {"dp", test_world().size() / outer}};
}

/// The world ranks that a communicator joins, told by themselves.
std::vector<int64_t> members(Communicator& comm) {
  auto mine = at::full({1}, test_world().rank(), on_device(at::kLong));
  auto all = at::empty({comm.size()}, on_device(at::kLong));
  comm.all_gather(all, mine).synchronize();
  all = all.cpu();
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

TEST(MeshTest, LetsTheLastAxisVaryFastest) {
  const Mesh mesh(test_world(), two_axes());
  const int64_t rank = test_world().rank();
  const int64_t inner = mesh.size("dp");
  EXPECT_EQ(mesh.coordinate("dp"), rank % inner);
  EXPECT_EQ(mesh.coordinate("dp_outer"), rank / inner);
  EXPECT_EQ(mesh.communicator("dp").rank(), mesh.coordinate("dp"));
  EXPECT_EQ(mesh.communicator("dp_outer").size(), mesh.size("dp_outer"));
  EXPECT_EQ(mesh.communicator("dp").name(), "dp");
  if (is_emulated()) return;
  for (int64_t i = 0; i < inner; ++i) {
    EXPECT_EQ(members(mesh.communicator("dp"))[static_cast<size_t>(i)], rank / inner * inner + i);
  }
  for (int64_t i = 0; i < mesh.size("dp_outer"); ++i) {
    EXPECT_EQ(
        members(mesh.communicator("dp_outer"))[static_cast<size_t>(i)], i * inner + rank % inner);
  }
}

TEST(MeshTest, HasSubMeshesThatShareCommunicators) {
  const Mesh mesh(test_world(), two_axes());
  const auto inner = mesh.sub({"dp"});
  EXPECT_EQ(inner.axes(), (std::vector<Axis>{{"dp", mesh.size("dp")}}));
  EXPECT_EQ(&inner.communicator("dp"), &mesh.communicator("dp"));
  EXPECT_FALSE(inner.has("dp_outer"));
  EXPECT_THROW(inner.communicator("dp_outer"), c10::ValueError);
}

TEST(MeshTest, FlattensAxesInTheGivenOrder) {
  const Mesh mesh(test_world(), two_axes());
  const auto flat = mesh.flatten({"dp", "dp_outer"}, "all");
  EXPECT_EQ(flat.size("all"), test_world().size());
  EXPECT_EQ(
      flat.coordinate("all"),
      mesh.coordinate("dp") * mesh.size("dp_outer") + mesh.coordinate("dp_outer"));
  EXPECT_EQ(flat.communicator("all").rank(), flat.coordinate("all"));
  if (is_emulated()) return;
  EXPECT_EQ(
      members(flat.communicator("all"))[static_cast<size_t>(flat.coordinate("all"))],
      test_world().rank());
}

TEST(MeshTest, KnowsTheWorldsRanksAlongAnAxis) {
  const Mesh mesh(test_world(), two_axes());
  const auto flat = mesh.flatten({"dp", "dp_outer"}, "all");
  for (const auto& [any, axis] :
       {std::pair(&mesh, "dp"), std::pair(&mesh, "dp_outer"), std::pair(&flat, "all")}) {
    const auto& ranks = any->ranks(axis);
    ASSERT_EQ(std::ssize(ranks), any->size(axis));
    EXPECT_EQ(ranks[static_cast<size_t>(any->coordinate(axis))], test_world().rank());
    if (!is_emulated()) {
      EXPECT_EQ(members(any->communicator(axis)), ranks) << axis;
    }
  }
  EXPECT_THROW(mesh.ranks("tp"), c10::ValueError);
}

TEST(MeshTest, OpensFurtherCommunicatorsAlongAnAxis) {
  const Mesh mesh(test_world(), two_axes());
  const auto gathers = mesh.new_communicator("dp", "dp.gather");
  EXPECT_EQ(gathers->name(), "dp.gather");
  EXPECT_EQ(gathers->size(), mesh.size("dp"));
  EXPECT_EQ(members(*gathers), members(mesh.communicator("dp")));
}

TEST(MeshTest, RefusesAxesThatDoNotFitTheWorld) {
  const auto refusal = [](std::vector<Axis> axes) -> std::string {
    try {
      Mesh(test_world(), std::move(axes));
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_NE(refusal({{"dp", test_world().size() + 1}}).find("the world has"), std::string::npos);
  EXPECT_NE(
      refusal({{"dp", test_world().size()}, {"dp", 1}}).find("appears twice"), std::string::npos);
  EXPECT_NE(refusal({{"dp", 0}}).find("size 0"), std::string::npos);
  EXPECT_NE(refusal({}).find("the world has"), std::string::npos);
}

/// Asserts that this rank gets an error soon that says all of this.
void expect_soon(const std::vector<std::string>& parts, const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run();
    ADD_FAILURE() << parts.front();
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(MeshTest, ARankThatMakesAnotherMeshIsNamedOnAllRanks) {
  const int64_t size = test_world().size();
  if (size == 1 || is_emulated()) return;
  const bool odd = test_world().rank() == size - 1;
  // At 4 ranks those with dp 2 × tp 2 would wait for the one with dp 1 × tp 4 in one axis or the
  // other.
  const int64_t tp = size % 2 == 0 ? size / 2 : 1;
  expect_soon(
      {"[comm.mesh] rank 0 makes a mesh of dp=" + std::to_string(size / tp) +
           " × tp=" + std::to_string(tp) + ", rank " + std::to_string(size - 1) +
           " one of dp=1 × tp=" + std::to_string(size),
       "the same sizes of data-parallel groups, cp, tp and ep"},
      [&] {
        Mesh(test_world(), {{"dp", odd ? 1 : size / tp}, {"tp", odd ? size : tp}});
      });
  expect_soon({"tp=" + std::to_string(size), "cp=" + std::to_string(size)}, [&] {
    Mesh(test_world(), {{odd ? "cp" : "tp", size}});
  });
  // The world goes on.
  EXPECT_EQ(
      std::ssize(members(Mesh(test_world(), two_axes()).communicator("dp"))),
      size / two_axes()[0].size);
}

TEST(MeshTest, ListsThatDivideTheRanksOtherwiseAreErrorsOnAllRanks) {
  const int64_t size = test_world().size(), rank = test_world().rank();
  if (size == 1 || is_emulated()) return;
  std::vector<int64_t> list(static_cast<size_t>(size));
  std::iota(list.begin(), list.end(), int64_t{0});
  // The last rank is alone, but the others count on it; at 4 ranks two of them do.
  if (rank == size - 1)
    list = {rank};
  else if (size == 4)
    list = rank == 2 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{0, 1};
  expect_soon(
      {"split", "'odd'", "passed a"}, [&] { test_world().communicator().split(list, "odd"); });
  EXPECT_EQ(test_world().communicator().split({rank}, "alone")->size(), 1);
}

}  // namespace
}  // namespace sherd
