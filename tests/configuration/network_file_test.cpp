// SPDX-License-Identifier: Apache-2.0
#include "configuration/network_file.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "configuration/configuration.h"
#include "files/temporary_folder.h"

namespace sherd {
namespace {

const std::string kInside = "[inside]\nlatency = 1e-5\nbandwidth = 3e11\n";
const std::string kBoth = kInside + "[between]\nlatency = 2e-5\nbandwidth = 5e10\n";

void expect_equal(const Link& link, const Link& expected) {
  EXPECT_EQ(link.latency, expected.latency);
  EXPECT_EQ(link.bandwidth, expected.bandwidth);
}

class NetworkFileTest : public ::testing::Test {
 protected:
  NetworkFile read(const std::string& text) const {
    const auto path = folder_.file("net.toml");
    std::ofstream(path) << text;
    return read_network(path);
  }
  void expect_problems(const std::string& text, const std::vector<std::string>& expected) const {
    try {
      read(text);
      ADD_FAILURE() << "read without an error:\n" << text;
    } catch (const ConfigurationError& error) {
      auto found = error.problems();
      for (auto& one : found) {
        const auto at = one.find(folder_.path() + "/");
        if (at != std::string::npos) one.erase(at, folder_.path().size() + 1);
      }
      EXPECT_EQ(found, expected);
    }
  }

  testing::TemporaryFolder folder_;
};

TEST_F(NetworkFileTest, EveryFileOfTheRepositoryReadsAndPricesAMesh) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SHERD_TEST_NETWORKS)) {
    SCOPED_TRACE(entry.path());
    ASSERT_EQ(entry.path().extension(), ".toml");
    const auto file = read_network(entry.path());
    EXPECT_NE(file.name, entry.path().stem());  // it has one of its own
    EXPECT_EQ(file.source, entry.path());
    const auto network = network_of(file, {{"dp_outer", 4}, {"dp", 8}});
    for (const auto& axis : {"dp_outer", "dp", "another"}) {
      const double time = seconds(network.link(axis), Collective::all_gather, 1 << 30, 8);
      EXPECT_GT(time, 1e-3) << axis;
      EXPECT_LT(time, 10) << axis;
    }
    ++files;
  }
  EXPECT_GE(files, 6);
}

TEST_F(NetworkFileTest, MissingKeysHaveTheirDefaults) {
  const auto file = read(kInside);
  EXPECT_EQ(file.name, "net");  // the file's
  EXPECT_EQ(file.node, 0);
  EXPECT_TRUE(file.overlaps);
  expect_equal(file.inside, {1e-5, 3e11});
  EXPECT_TRUE(file.axes.empty());
  EXPECT_EQ(file.device.memory, 0);
}

TEST_F(NetworkFileTest, TheTextReadsBackAsTheSame) {
  const auto file = read(
      "name = \"a \\\"quoted\\\" name\"\nnode = 4\noverlaps = false\n" + kBoth +
      "[axes.dp]\nlatency = 0\nbandwidth = 123456789\n[axes.\"odd name\"]\nlatency = 0.1\n"
      "bandwidth = 1e9\n[device]\ntflops = 0.3\ntflops_fp8 = 0.5\nmemory_bandwidth = "
      "4.1e12\nmemory = \"1.5GiB\"");
  const auto again = read(to_text(file));
  EXPECT_EQ(to_text(again), to_text(file));
  EXPECT_EQ(again.name, "a \"quoted\" name");
  EXPECT_EQ(again.node, 4);
  EXPECT_FALSE(again.overlaps);
  expect_equal(again.inside, {1e-5, 3e11});
  expect_equal(again.between, {2e-5, 5e10});
  EXPECT_EQ(again.axes.size(), 2u);
  expect_equal(again.axes.at("dp"), {0, 123456789});
  expect_equal(again.axes.at("odd name"), {0.1, 1e9});
  EXPECT_EQ(again.device.tflops, 0.3);
  EXPECT_EQ(again.device.tflops_fp8, 0.5);
  EXPECT_EQ(again.device.memory_bandwidth, 4.1e12);
  EXPECT_EQ(again.device.memory, 1536LL << 20);
  const auto small = read(kInside);
  EXPECT_EQ(to_text(read(to_text(small))), to_text(small));
}

TEST_F(NetworkFileTest, AnUnknownKeyIsNamedWithTheNearestOne) {
  expect_problems(
      "nodes = 8\n" + kInside, {"net.toml:1: nodes = 8: unknown key; did you mean node?"});
  expect_problems(
      "[inside]\nlatency = 0\nbandwith = 1e9\n",
      {"net.toml:3: inside.bandwith = 1e+09: unknown key; did you mean inside.bandwidth?",
       "net.toml:1: inside.bandwidth is missing: write it in bytes per second"});
  expect_problems(
      kInside + "[device]\nx = 1",
      {"net.toml:5: device.x = 1: unknown key; the keys are tflops, tflops_fp8, "
       "memory_bandwidth, memory"});
}

TEST_F(NetworkFileTest, AValueOfTheWrongTypeIsNamed) {
  expect_problems(
      "name = 3\nnode = 1.5\noverlaps = \"yes\"\n" + kBoth,
      {"net.toml:1: name = 3: it must be a string in quotes",
       "net.toml:2: node = 1.5: it must be a whole number",
       "net.toml:3: overlaps = \"yes\": it must be true or false"});
  expect_problems(
      "inside = 3", {"net.toml:1: inside = 3: it is a section: write [inside] and its keys below"});
  expect_problems(
      kInside + "[axes]\ndp = 1\n",
      {"net.toml:5: axes.dp = 1: it is a section: write [axes.dp] and its keys below"});
  expect_problems(kInside + "[node]\n", {"net.toml:4: node = {…}: it is a value, not a section"});
  expect_problems(
      kInside + "[device]\ntflops = \"many\"\nmemory = \"80Gb\"",
      {"net.toml:5: device.tflops = \"many\": it must be a number",
       "net.toml:6: device.memory = \"80Gb\": it must be a number of bytes, such as \"80GiB\""});
}

TEST_F(NetworkFileTest, AFigureInAnotherUnitLiesOutsideTheRange) {
  expect_problems(
      "[inside]\nlatency = 12\nbandwidth = 360\n",
      {"net.toml:2: inside.latency = 12: it must be at least 0 and at most 1 seconds",
       "net.toml:3: inside.bandwidth = 360: it must be at least 1e+06 and at most 1e+15 bytes per "
       "second"});
  expect_problems(
      "[inside]\nlatency = nan\nbandwidth = 1e9\n",
      {"net.toml:2: inside.latency = nan: it must be at least 0 and at most 1 seconds"});
  expect_problems(
      "node = -1\n" + kBoth, {"net.toml:1: node = -1: it must be at least 0 and at most 16777216"});
  expect_problems(
      kInside + "[device]\nmemory = 0",
      {"net.toml:5: device.memory = 0: it must be a number of bytes, such as \"80GiB\""});
}

TEST_F(NetworkFileTest, ALinkThatIsNeededMustBeThere) {
  expect_problems(
      "node = 8\n" + kInside, {"net.toml:1: between is missing: several nodes need an outer link, "
                               "so write [between] with latency and "
                               "bandwidth"});
  expect_problems(
      "overlaps = true", {"net.toml:1: inside is missing: a node of several ranks needs an inner "
                          "link, so write [inside] with latency "
                          "and bandwidth"});
  EXPECT_EQ(read("node = 1\n[between]\nlatency = 0\nbandwidth = 1e9").inside.bandwidth, 0);
}

TEST_F(NetworkFileTest, AFileThatIsNotThereIsNamed) {
  try {
    read_network("/nowhere/net.toml");
    ADD_FAILURE();
  } catch (const ConfigurationError& error) {
    EXPECT_STREQ(error.what(), "/nowhere/net.toml: it can't be read: give the path of a TOML file");
  }
}

NetworkFile nodes_of_eight() {
  NetworkFile file;
  file.node = 8;
  file.inside = {10e-6, 300e9};
  file.between = {20e-6, 50e9};
  return file;
}

TEST(NetworkOfTest, AnAxisWithinANodeRunsInsideAndOneAcrossRunsBetween) {
  const auto file = nodes_of_eight();
  const auto network = network_of(file, {{"dp_outer", 8}, {"dp", 8}});
  expect_equal(network.link("dp"), file.inside);
  expect_equal(network.link("dp_outer"), file.between);
  EXPECT_TRUE(network.overlaps);
  // Two axes share a node.
  const auto three = network_of(file, {{"dp_outer", 3}, {"dp", 4}, {"tp", 2}});
  expect_equal(three.link("tp"), file.inside);
  expect_equal(three.link("dp"), file.inside);
  expect_equal(three.link("dp_outer"), file.between);
}

TEST(NetworkOfTest, AnAxisWithHopsOfBothKindsHasTheNicsOfItsRanksInANode) {
  const auto file = nodes_of_eight();
  // Eight NICs have more together than the inner link.
  expect_equal(network_of(file, {{"dp", 64}}).link("dp"), {20e-6, 300e9});
  const auto quarters = network_of(file, {{"dp_outer", 4}, {"dp", 4}});
  expect_equal(quarters.link("dp"), file.inside);
  expect_equal(quarters.link("dp_outer"), {20e-6, 100e9});
  // Six do not divide eight: ranks 6 to 11 lie in two nodes.
  expect_equal(network_of(file, {{"dp_outer", 4}, {"dp", 6}}).link("dp"), {20e-6, 150e9});
  expect_equal(network_of(file, {{"dp", 6}}).link("dp"), file.inside);
  auto slow_inside = file;
  slow_inside.inside = {30e-6, 20e9};
  expect_equal(network_of(slow_inside, {{"dp", 64}}).link("dp"), {30e-6, 20e9});
}

TEST(NetworkOfTest, AxesThatAreNotNamedHaveTheLinkOfAllRanks) {
  auto file = nodes_of_eight();
  expect_equal(network_of(file, {{"dp_outer", 2}, {"dp", 4}}).link("flat"), file.inside);
  expect_equal(network_of(file, {{"dp_outer", 2}, {"dp", 8}}).link("flat"), {20e-6, 300e9});
  file.node = 0;
  expect_equal(network_of(file, {{"dp", 4096}}).link("dp"), file.inside);
  file.node = 1;
  expect_equal(network_of(file, {{"dp", 4}}).link("dp"), file.between);
}

TEST(NetworkOfTest, TheLinkOfANamedAxisComesFirst) {
  auto file = nodes_of_eight();
  file.overlaps = false;
  file.axes = {{"dp", {1e-6, 1e9}}, {"flat", {2e-6, 2e9}}};
  const auto network = network_of(file, {{"dp", 64}});
  expect_equal(network.link("dp"), {1e-6, 1e9});
  expect_equal(network.link("flat"), {2e-6, 2e9});
  EXPECT_FALSE(network.overlaps);
}

TEST(NetworkOfTest, AMeshThatCannotBeIsRefused) {
  const auto file = nodes_of_eight();
  EXPECT_THROW(network_of(file, {{"dp", 0}}), c10::ValueError);
  EXPECT_THROW(network_of(file, {{"dp", 2}, {"dp", 2}}), c10::ValueError);
  EXPECT_THROW(network_of(file, {{"a", 1LL << 40}, {"b", 1LL << 40}}), c10::ValueError);
}

}  // namespace
}  // namespace sherd
