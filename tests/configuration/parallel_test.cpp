// SPDX-License-Identifier: Apache-2.0
// Ranks that share sequences and experts: what configurations may ask for, and the meshes of it.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <fstream>

#include "configuration/axes.h"
#include "configuration/setup.h"
#include "files/temporary_folder.h"

namespace sherd {
namespace {

constexpr int64_t kRanks = 64;

/// The problems of a file with some keys, without its name.
std::vector<std::string> problems_with(const std::vector<std::string>& keys) {
  const testing::TemporaryFolder folder;
  const auto path = folder.file("run.toml");
  std::ofstream(path) << "[data]\ntext = \"story.txt\"\nseq = 96\n[model]\ndim = 64\nheads = 4\n"
                         "kv_heads = 2\nffn = 72\n";
  try {
    read_configuration(path, keys);
  } catch (const ConfigurationError& error) {
    auto found = error.problems();
    for (auto& one : found) {
      const auto at = one.find(path);
      if (at != std::string::npos) one.erase(at, path.size() + 2);
    }
    return found;
  }
  return {};
}

using Problems = std::vector<std::string>;

TEST(ParallelKeys, MayBeWhatDividesTheModel) {
  EXPECT_EQ(problems_with({"parallel.tp=2", "parallel.cp=4"}), Problems());
  EXPECT_EQ(problems_with({"model.kind=moe", "parallel.tp=2", "parallel.ep=8"}), Problems());
  EXPECT_EQ(problems_with({"parallel.tp=2", "train.graph=true"}), Problems());
  // Each layer's own sizes: that of a feed-forward does not matter where there is none.
  EXPECT_EQ(
      problems_with({"model.kind=moe", "model.ffn=8", "model.kv_heads=4", "parallel.tp=4"}),
      Problems());
}

TEST(ParallelKeys, ThatDoNotDivideTheModelAreNamedWithIt) {
  EXPECT_EQ(
      problems_with({"parallel.tp=4"}),
      Problems{"parallel.tp = 4: it must divide model.kv_heads = 2"});
  EXPECT_EQ(
      problems_with({"parallel.tp=2", "model.ffn=73"}),
      Problems{"parallel.tp = 2: it must divide model.ffn = 73"});
  EXPECT_EQ(
      problems_with({"parallel.tp=3"}), (Problems{
                                            "parallel.tp = 3: it must divide model.heads = 4",
                                            "parallel.tp = 3: it must divide model.kv_heads = 2"}));
  EXPECT_EQ(
      problems_with({"model.kind=moe", "model.shared_ffn=9", "parallel.tp=2"}),
      Problems{"parallel.tp = 2: it must divide model.shared_ffn = 9"});
  EXPECT_EQ(
      problems_with(
          {"model.kind=hybrid", "model.pattern=M", "model.ssm_head_dim=32", "parallel.cp=8"}),
      Problems{"parallel.cp = 8, parallel.tp = 1: their product must divide Mamba-2's heads, "
               "ssm_expand · dim / ssm_head_dim = 4, and divide model.ssm_groups = 1 or be a "
               "multiple of it"});
  EXPECT_EQ(
      problems_with({"model.kind=moe", "parallel.ep=3"}),
      Problems{"parallel.ep = 3: it must divide model.experts = 8"});
}

TEST(ParallelKeys, SequencesAreAMultipleOfTheirRanks) {
  EXPECT_EQ(
      problems_with({"parallel.cp=5"}), Problems{"data.seq = 96: with parallel.cp = 5 it must be a "
                                                 "multiple of 10, which is 2 · cp · tp"});
  EXPECT_EQ(
      problems_with({"data.seq=97", "parallel.tp=2"}),
      Problems{"data.seq = 97: with parallel.tp = 2 it must be a multiple of 2"});
  EXPECT_EQ(
      problems_with({"data.seq=92", "parallel.cp=2", "parallel.tp=2"}),
      Problems{"data.seq = 92: with parallel.cp = 2, parallel.tp = 2 it must be a multiple of 8, "
               "which is 2 · cp · tp"});
}

TEST(ParallelKeys, WhatIsNotSupportedTogetherIsRefused) {
  EXPECT_EQ(
      problems_with({"model.kind=vlm", "data.images=images.bin", "parallel.cp=2", "data.seq=128"}),
      Problems{"parallel.cp = 2: ranks can't share the sequences of a model of kind \"vlm\", whose "
               "images are whole; remove it"});
  EXPECT_EQ(
      problems_with({"model.kind=moe", "parallel.ep=2", "train.graph=true"}),
      Problems{"train.graph = true: with parallel.ep = 2 the host waits for the numbers of rows "
               "that ranks exchange; set train.graph = false"});
  EXPECT_EQ(
      problems_with({"parallel.ep=2"}), Problems{"parallel.ep = 2: the model has no experts; set "
                                                 "model.kind = \"moe\", or remove parallel.ep"});
}

TEST(ParallelKeys, NormsOverAllHeadsNeedAllHeads) {
  EXPECT_EQ(
      problems_with(
          {"model.kind=moe", "model.qk_norm=true", "model.qk_norm_across=true", "parallel.tp=2"}),
      Problems{"parallel.tp = 2: the model norms queries and keys over all heads "
               "(model.qk_norm_across), and a rank would have only its own; set parallel.tp = 1"});
  EXPECT_EQ(
      problems_with({"model.qk_norm=true", "model.qk_norm_across=true", "parallel.cp=2"}),
      Problems());
}

std::string fp8_problem(
    const std::string& recipe, const std::string& what, int64_t part, const std::string& keep) {
  return "parallel.tp = 2: with precision.recipe = \"" + recipe + "\" a rank's part of *." + what +
         "; it has " + std::to_string(part) +
         ". Set a smaller parallel.tp, or precision.keep = [\"" + keep + "\"]";
}

TEST(ParallelKeys, PartsOfWeightsInFp8HaveWholeBlocks) {
  const auto problems = [](const std::string& recipe, std::vector<std::string> more) {
    more.push_back("precision.recipe=" + recipe);
    return problems_with(more);
  };
  const std::string both = "*.gate_up.weight\", \"*.down.weight";
  const Problems of_feed_forward{
      fp8_problem("fp8", "feed_forward.gate_up.weight must have a multiple of 16 rows", 72, both),
      fp8_problem("fp8", "feed_forward.down.weight must have a multiple of 16 columns", 36, both)};
  EXPECT_EQ(problems("fp8", {"parallel.tp=2"}), of_feed_forward);
  EXPECT_EQ(problems("fp8", {"parallel.cp=2"}), Problems());
  EXPECT_EQ(problems("bf16_o2", {"parallel.tp=2"}), Problems());
  EXPECT_EQ(problems("fp8_wgrad16", {"parallel.tp=2", "model.ffn=96"}), Problems());
  // What is kept in bf16 may have any parts, if all layers are.
  const std::vector<std::string> kept{"parallel.tp=2", "model.layers=2"};
  auto keep = kept;
  keep.emplace_back("precision.keep=[\"*.gate_up.weight\", \"*.down.weight\"]");
  EXPECT_EQ(problems("fp8", keep), Problems());
  keep.back() = "precision.keep=[\"layer0.*\"]";
  EXPECT_EQ(problems("fp8", keep), of_feed_forward);
  keep.back() = "precision.keep=[\"layer0.*\", \"layer1.*\"]";
  EXPECT_EQ(problems("fp8", keep), Problems());
  EXPECT_EQ(
      problems("mxfp8", {"parallel.tp=2", "model.ffn=128", "model.head_dim=24"}),
      (Problems{fp8_problem(
          "mxfp8", "attention.output.weight must have a multiple of 32 columns", 48,
          "*.attention.output.weight")}));
  EXPECT_EQ(
      problems("fp8_block", {"parallel.tp=2", "model.ffn=256"}),
      (Problems{
          fp8_problem(
              "fp8_block", "attention.qkv.weight must have a multiple of 128 rows", 64,
              "*.qkv.weight"),
          fp8_problem(
              "fp8_block", "attention.output.weight must have a multiple of 128 columns", 32,
              "*.attention.output.weight")}));
  EXPECT_EQ(
      problems("fp8", {"model.kind=hybrid", "model.pattern=M-E", "parallel.tp=2"}),
      (Problems{
          fp8_problem("fp8", "mixer.gate_up.weight must have a multiple of 16 rows", 72, both),
          fp8_problem("fp8", "mixer.down.weight must have a multiple of 16 columns", 36, both)}));
  EXPECT_EQ(
      problems("fp8", {"model.kind=moe", "model.shared_ffn=48", "parallel.tp=2"}),
      Problems{fp8_problem(
          "fp8", "experts.shared.down.weight must have a multiple of 16 columns", 24, both)});
}

Configuration with(int64_t outer, int64_t cp, int64_t tp, int64_t ep) {
  Configuration all;
  all.shard.outer = outer;
  all.parallel = {.cp = cp, .tp = tp, .ep = ep};
  return all;
}

TEST(ParallelAxes, AreMeshesOverTheSameRanks) {
  const auto all = with(2, 4, 2, 8);
  EXPECT_EQ(data_axes_of(all, kRanks), (NamedSizes{{"dp_outer", 2}, {"dp_cp_tp", 32}}));
  EXPECT_EQ(
      sequence_axes_of(all, kRanks),
      (NamedSizes{{"dp_outer", 2}, {"dp", 4}, {"cp", 4}, {"tp", 2}}));
  EXPECT_EQ(expert_axes_of(all, kRanks), (NamedSizes{{"dp_outer", 2}, {"edp", 4}, {"ep", 8}}));
  EXPECT_EQ(data_ranks_of(all, kRanks), 8);

  EXPECT_EQ(data_axes_of(with(1, 1, 1, 1), kRanks), (NamedSizes{{"dp", kRanks}}));
  EXPECT_EQ(sequence_axes_of(with(1, 1, 1, 4), kRanks), std::nullopt);
  EXPECT_EQ(expert_axes_of(with(1, 2, 2, 1), kRanks), std::nullopt);
  EXPECT_EQ(
      sequence_axes_of(with(1, 2, 1, 1), kRanks), (NamedSizes{{"dp", kRanks / 2}, {"cp", 2}}));
}

TEST(ParallelAxes, ThatDoNotDivideTheRanksAreNamed) {
  const auto refused = [](const Configuration& all, const std::string& expected) {
    try {
      check_axes(all, kRanks);
      ADD_FAILURE() << "not refused: " << expected;
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(error.what_without_backtrace(), expected);
    }
  };
  refused(
      with(3, 1, 1, 1), "[train] shard.outer = 3: it must divide the number of ranks, which is 64");
  refused(
      with(1, 3, 2, 1),
      "[train] parallel.cp = 3, parallel.tp = 2: their product must divide the 64 ranks");
  refused(
      with(16, 2, 4, 1),
      "[train] parallel.cp = 2, parallel.tp = 4: their product must divide the 4 ranks of each of "
      "the 16 groups (shard.outer)");
  refused(
      with(16, 1, 1, 8),
      "[train] parallel.ep = 8: it must divide the 4 ranks of each of the 16 groups (shard.outer)");
}

TEST(ParallelAxes, HaveLinksOfTheirOwn) {
  NetworkFile file;
  file.node = 8;
  file.inside = {.latency = 1, .bandwidth = 100};
  file.between = {.latency = 2, .bandwidth = 10};
  const auto network = network_of(file, with(2, 4, 2, 8), kRanks);
  EXPECT_EQ(network.link("tp").bandwidth, 100) << "next to one another";
  EXPECT_EQ(network.link("cp").bandwidth, 100) << "a node has all of both";
  EXPECT_EQ(network.link("dp").bandwidth, 10) << "one of each node";
  EXPECT_EQ(network.link("dp_cp").bandwidth, 40) << "four of each node";
  EXPECT_EQ(network.link("dp_cp_tp").bandwidth, 80) << "all of them";
  EXPECT_EQ(network.link("ep").bandwidth, 100);
  EXPECT_EQ(network.link("edp").bandwidth, 10);
  EXPECT_EQ(network.link("dp_outer").bandwidth, 10);
}

}  // namespace
}  // namespace sherd
