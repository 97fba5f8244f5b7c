// SPDX-License-Identifier: Apache-2.0
#include "configuration/configuration.h"

#include <gtest/gtest.h>

#include <fstream>

#include "configuration/renamed_keys.h"
#include "files/temporary_folder.h"

namespace sherd {
namespace {

const char* const kWhole = "[data]\ntext = \"story.txt\"\n";

class ConfigurationTest : public ::testing::Test {
 protected:
  std::string file(const std::string& text) const {
    const auto path = folder_.file("run.toml");
    std::ofstream(path) << text;
    return path;
  }
  Configuration read(
      const std::string& text, const std::vector<std::string>& overrides = {}) const {
    return read_configuration(file(text), overrides);
  }
  /// Its problems, without the folder.
  std::vector<std::string> problems(
      const std::string& text, const std::vector<std::string>& overrides = {}) const {
    try {
      read(text, overrides);
    } catch (const ConfigurationError& error) {
      auto found = error.problems();
      for (auto& one : found) {
        const auto at = one.find(folder_.path() + "/");
        if (at != std::string::npos) one.erase(at, folder_.path().size() + 1);
      }
      return found;
    }
    return {};
  }
  void expect_problem(
      const std::string& text,
      const std::string& expected,
      const std::vector<std::string>& overrides = {}) const {
    const auto found = problems(text, overrides);
    ASSERT_EQ(found.size(), 1u) << (found.empty() ? "" : found[1]);
    EXPECT_EQ(found[0], expected);
  }

  testing::TemporaryFolder folder_;
};

TEST_F(ConfigurationTest, MissingKeysHaveTheirDefaults) {
  const auto all = read(kWhole);
  EXPECT_EQ(all.model.kind, "llama");
  EXPECT_EQ(all.optim.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_FALSE(all.optim.max_norm.has_value());
}

TEST_F(ConfigurationTest, FilesToReadAreMeantFromTheFilesFolderAndOverridesFromHere) {
  EXPECT_EQ(read(kWhole).data.text, folder_.file("story.txt"));
  EXPECT_EQ(read(kWhole, {"data.text=other.txt"}).data.text, "other.txt");
  EXPECT_EQ(read(std::string(kWhole) + "[train]\nout = \"here\"").train.out, "here");
}

TEST_F(ConfigurationTest, OverridesComeLastAndStringsNeedNoQuotes) {
  const auto all = read(
      std::string(kWhole) + "[optim]\nlr = 1\nschedule = \"linear\"",
      {"optim.lr=2e-4", "optim.schedule=constant", "optim.betas=[0.8, 0.9]", "optim.max_norm=1"});
  EXPECT_EQ(all.optim.lr, 2e-4);
  EXPECT_EQ(all.optim.schedule, "constant");
  EXPECT_EQ(all.optim.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(all.optim.max_norm, 1);
}

TEST_F(ConfigurationTest, AnEmptyStringUnsetsAKeyWithoutADefault) {
  EXPECT_EQ(read(std::string(kWhole) + "validation = \"\"").data.validation, std::nullopt);
  const auto all = read(
      std::string(kWhole) + "validation = \"v.txt\"\n[optim]\nmax_norm = 1",
      {"data.validation=", "optim.max_norm="});
  EXPECT_EQ(all.data.validation, std::nullopt);
  EXPECT_EQ(all.optim.max_norm, std::nullopt);
  EXPECT_EQ(read(kWhole, {"data.text=", "data.tokens=t.bin"}).data.tokens, "t.bin");
  expect_problem(
      kWhole, "data: give data.tokens = \"file.bin\" or data.text = \"file.txt\"", {"data.text="});
  expect_problem(
      kWhole, "--set data.dtype=:1: data.dtype = \"\": it must be one of \"uint16\", \"uint32\"",
      {"data.dtype="});
}

TEST_F(ConfigurationTest, NonAsciiLettersAreAllowedInStringsAndComments) {
  const std::string text = "\xEF\xBB\xBF# für später\n[data]\ntext = \"größe\"\n[train]\nout = ";
  EXPECT_EQ(read(text + "'''é\n\"ä'''  # ok: ü").train.out, "é\n\"ä");
  EXPECT_EQ(read(text + "\"\\\"é\"").train.out, "\"é");
  EXPECT_EQ(read(text + "\"a\"", {"train.out=Übung"}).train.out, "Übung");
  expect_problem(
      text + "é", "run.toml:5: a non-ASCII character outside a string: put the value in quotes");
}

TEST_F(ConfigurationTest, TheDumpReadsBackAsTheSame) {
  const auto all = read(
      std::string(kWhole) + "[optim]\nlr = 0.1\nmax_norm = 0.3\n[precision]\nrecipe = \"bf16_o2\"",
      {"train.out=a \"quoted\" name", "model.tie_embeddings=true"});
  const auto text = to_text(all);
  EXPECT_EQ(to_text(read(text)), text);
  EXPECT_NE(text.find("max_norm = 0.3\n"), std::string::npos) << text;
}

TEST_F(ConfigurationTest, MisspeltKeysAreNamedWithTheNearestOne) {
  expect_problem(
      std::string(kWhole) + "[optim]\nwarmpu = 2",
      "run.toml:4: optim.warmpu = 2: unknown key; did you mean optim.warmup?");
  expect_problem(
      kWhole,
      "--set optim.rate=1:1: optim.rate = 1: unknown key; the keys are name, lr, betas, eps, "
      "weight_decay, weight_decay_on, max_norm, schedule, warmup, min_lr, decay_steps, on_extend",
      {"optim.rate=1"});
}

TEST_F(ConfigurationTest, ARenamedKeyIsRefusedWithItsNewName) {
  expect_problem(
      std::string(kWhole) + "[optim]\nclip = 0.3",
      "run.toml:4: optim.clip is now optim.max_norm: write optim.max_norm = 0.3");
  expect_problem(
      std::string(kWhole) + "[optim]\ndecay = \"matrices\"",
      "run.toml:4: optim.decay is now optim.weight_decay_on: write optim.weight_decay_on = "
      "\"matrices\"");
  expect_problem(
      kWhole, "--set optim.clip=1:1: optim.clip is now optim.max_norm: write optim.max_norm = 1",
      {"optim.clip=1"});
}

TEST_F(ConfigurationTest, EveryRenamedKeyIsReadFromTheFileOfAnEarlierRun) {
  const std::string data = kWhole;
  for (const auto& [section, before, now] : kRenamedKeys) {
    const std::string value = before == "clip" ? "0.3" : "\"matrices\"";
    const auto text = [&](std::string_view key) {
      return data + "[" + std::string(section) + "]\n" + std::string(key) + " = " + value;
    };
    const auto old = read_earlier_configuration(file(text(before)));
    EXPECT_EQ(to_text(old), to_text(read(text(now)))) << before;
    EXPECT_NE(to_text(old), to_text(read(kWhole))) << before;
  }
}

TEST_F(ConfigurationTest, EveryProblemHasItsLine) {
  const auto found = problems(
      "[model]\ndim = \"wide\"\nlayers = 0\nheads = 2.5\n[data]\ntext = \"a\"\nshuffle = 1\n"
      "[optim]\nbetas = [0.9, 1.0]\nlr = -1\nmax_norm = nan\nname = \"sgd\"\n[modle]\ndim = 3");
  const std::vector<std::string> expected{
      "run.toml:2: model.dim = \"wide\": it must be a whole number",
      "run.toml:3: model.layers = 0: it must be at least 1 and at most 65536",
      "run.toml:4: model.heads = 2.5: it must be a whole number",
      "run.toml:7: data.shuffle = 1: it must be true or false",
      "run.toml:12: optim.name = \"sgd\": it must be one of \"adamw\"",
      "run.toml:10: optim.lr = -1: it must be at least 0",
      "run.toml:9: optim.betas = [0.9, 1]: it must be at least 0 and below 1",
      "run.toml:11: optim.max_norm = nan: it must be above 0",
      "run.toml:13: modle = {…}: unknown key; did you mean model?"};
  EXPECT_EQ(found, expected);
}

TEST_F(ConfigurationTest, KeysThatContradictEachOtherAreNamed) {
  expect_problem(kWhole, "model.heads = 3: it must divide model.dim = 256", {"model.heads=3"});
  expect_problem(
      kWhole, "model.kv_heads = 3: it must divide model.heads = 8", {"model.kv_heads=3"});
  expect_problem("", "data: give data.tokens = \"file.bin\" or data.text = \"file.txt\"");
  expect_problem(
      kWhole,
      "precision.recipe = \"fp32\": a recipe sets compute, main, gradient and reduce; remove those "
      "keys, or the recipe",
      {"precision.recipe=fp32", "precision.main=fp32"});
  expect_problem(
      kWhole, "optim.warmup = 200: it must be at most train.steps = 100", {"optim.warmup=200"});
  expect_problem(
      kWhole,
      "train.validate_every = 5: there is no validation data; set data.validation or "
      "data.val_fraction",
      {"train.validate_every=5"});
}

TEST_F(ConfigurationTest, WhatIsNoTomlIsRefusedWithItsLine) {
  const auto found = problems("[model]\ndim = = 3");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rfind("run.toml:2: ", 0), 0u) << found[0];
  expect_problem(kWhole, "--set lr: write it as --set section.key=value", {"lr"});
  try {
    read_configuration(folder_.file("nothing.toml"));
    FAIL();
  } catch (const ConfigurationError& error) {
    EXPECT_NE(std::string(error.what()).find("nothing.toml: it can't be read"), std::string::npos);
  }
}

TEST_F(ConfigurationTest, TheHelpHasEveryKeyWithItsMeaning) {
  const auto help = configuration_help();
  for (const char* word :
       {"[model]", "rope_theta = 10000", "[precision]", "max_norm\n",
        "one of \"auto\", \"cpu\", \"cuda\""}) {
    EXPECT_NE(help.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace sherd
