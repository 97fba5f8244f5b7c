// SPDX-License-Identifier: Apache-2.0
// Damaged checkpoints end in an error that says what is wrong.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "checkpoint/safetensors.h"
#include "checkpoint/sealed_json.h"
#include "checkpoint/small_model.h"
#include "files/temporary_folder.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/checkpoint/inspect.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

const char* const kModel = "model-00001-of-00001.safetensors";
const char* const kFirst = "first_moment-00001-of-00001.safetensors";

class CheckpointDamage : public ::testing::Test {
 protected:
  CheckpointDamage() {
    subject_.step(0);
    save(subject_.model, *subject_.optimizer, folder_, {.texts = {{"config.json", "{}"}}});
  }
  std::string in(const std::string& name) const { return folder_ + "/" + name; }
  std::string read(const std::string& name) const {
    std::ifstream file(in(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(in(name), std::ios::binary | std::ios::trunc) << bytes;
  }
  void flip(const std::string& name, int64_t at) const {
    auto bytes = read(name);
    bytes[static_cast<size_t>(at < 0 ? std::ssize(bytes) + at : at)] ^= 4;
    write(name, bytes);
  }
  /// Edits the state and seals it anew.
  void edit_state(const std::function<void(Json&)>& edit) const {
    auto state = read_sealed(in("state.json"));
    edit(state);
    fs::remove(in("state.json"));
    write_sealed(in("state.json"), state);
  }
  std::string problem() {
    try {
      load(subject_.model, *subject_.optimizer, folder_);
    } catch (const c10::ValueError& error) {
      return error.what_without_backtrace();
    }
    return "none";
  }
  void expect(const std::string& words) {
    const auto text = problem();
    EXPECT_NE(text.find(words), std::string::npos) << text;
    EXPECT_NE(text.find(folder_), std::string::npos) << text;
  }

  TemporaryFolder place_;
  std::string folder_ = place_.file("step-1");
  World world_ = World::emulated({.size = 1});
  Subject subject_{world_, {.mesh = Mesh(world_, {{"dp", 1}})}, 1};
};

TEST_F(CheckpointDamage, UndamagedItIsLoaded) {
  EXPECT_EQ(problem(), "none");
  EXPECT_EQ(find_checkpoints(place_.path()).size(), 1u);
  verify_checkpoint(folder_);
}

TEST_F(CheckpointDamage, AFileIsMissing) {
  for (const char* name :
       {kModel, kFirst, "tensors.json", "checksums.bin", "config.json", "state.json",
        "model.safetensors.index.json"}) {
    fs::rename(in(name), in("away"));
    expect("is not a complete checkpoint");
    expect(name);
    EXPECT_TRUE(find_checkpoints(place_.path()).empty()) << name;
    fs::rename(in("away"), in(name));
  }
}

TEST_F(CheckpointDamage, AFileIsCutOrTooLong) {
  const auto bytes = read(kModel);
  for (const size_t size : {size_t{0}, size_t{5}, bytes.size() / 2, bytes.size() - 1}) {
    write(kModel, bytes.substr(0, size));
    expect("bytes instead of");
    EXPECT_TRUE(find_checkpoints(place_.path()).empty());
  }
  write(kModel, bytes + "x");
  expect("bytes instead of");
}

TEST_F(CheckpointDamage, ABitIsFlippedInATensor) {
  flip(kModel, -3);
  expect("is damaged: tensor '");
  flip(kModel, -3);
  flip(kFirst, -1);
  expect(kFirst);
  EXPECT_THROW(verify_checkpoint(folder_), c10::ValueError);
}

TEST_F(CheckpointDamage, ABitIsFlippedAnywhereInSmallFiles) {
  for (const char* name : {"state.json", "tensors.json", "checksums.bin"}) {
    const auto whole = read(name);
    for (int64_t at = 0; at < std::ssize(whole); at += 7) {
      flip(name, at);
      EXPECT_NE(problem(), "none") << name << " at " << at;
      write(name, whole);
    }
  }
}

TEST_F(CheckpointDamage, ABitIsFlippedAnywhereInAHeader) {
  const auto whole = read(kModel);
  for (int64_t at = 0; at < 300; at += 3) {
    flip(kModel, at);
    EXPECT_NE(problem(), "none") << at;
    write(kModel, whole);
  }
}

TEST_F(CheckpointDamage, AHeaderLiesAboutItsLength) {
  auto bytes = read(kModel);
  for (const char length : {'\x7f', '\x00', '\xff'}) {
    for (const size_t place : {size_t{0}, size_t{3}, size_t{7}}) {
      auto lying = bytes;
      lying[place] = length;
      if (lying == bytes) continue;
      write(kModel, lying);
      expect(kModel);
    }
  }
}

TEST_F(CheckpointDamage, ATensorHasAnotherShapeOrNameOrIsOneTooMany) {
  const auto edit = [&](const std::string& from, const std::string& to) {
    auto bytes = read(kModel);
    ASSERT_NE(bytes.find(from), std::string::npos);
    bytes.replace(bytes.find(from), from.size(), to);
    write(kModel, bytes);
    fs::remove(in("state.json"));
    seal_checkpoint(folder_, {}, AdamW::Progress{});  // by somebody who means it
  };
  edit("[5,7]", "[7,5]");
  expect("has the shape [7, 5], but the model's is [5, 7]");
  edit("[7,5]", "[5,7]");
  edit("first.linear.weight", "first.linear.weighs");
  expect("has no tensor 'first.linear.weight'");
}

TEST_F(CheckpointDamage, OfAnotherModel) {
  struct Other : torch::nn::Module {
    Other() { head = register_module("head", Linear(5, 2)); }
    at::Tensor forward(const at::Tensor& x) { return head(x).sum(); }
    Linear head{nullptr};
  };
  const auto other = std::make_shared<Other>();
  fully_shard(other, {.mesh = Mesh(world_, {{"dp", 1}})});
  try {
    load(*other, nullptr, folder_);
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_NE(
        std::string(error.what()).find("which the model has no parameter or buffer for"),
        std::string::npos);
  }
}

TEST_F(CheckpointDamage, TheStateIsOfAnotherVersionOrNamesOtherFiles) {
  edit_state([](Json& state) { state["version"] = 3; });
  expect("another format or version");
  edit_state([](Json& state) { state["version"] = 1, state["ranks"] = 2; });
  expect("checksums-0.json is missing");
  edit_state([](Json& state) { state["version"] = 2, state["files"]["../x"] = 3; });
  expect("is not a file of this folder");
}

TEST_F(CheckpointDamage, ItWasSavedWithoutAnOptimizer) {
  save(subject_.model, nullptr, folder_);
  expect("has no tensor '");
}

TEST_F(CheckpointDamage, AnErrorLeavesWhatWasThere) {
  const auto before = read("state.json");
  fs::create_directory(folder_ + ".part");
  std::ofstream(folder_ + ".part/left behind") << "by a crash";
  subject_.step(1);
  save(subject_.model, *subject_.optimizer, folder_);
  EXPECT_NE(read("state.json"), before);
  EXPECT_FALSE(fs::exists(folder_ + ".part"));
  EXPECT_EQ(problem(), "none");
  std::ofstream(place_.file("file")) << "x";
  try {
    save(subject_.model, *subject_.optimizer, place_.file("file/step-2"));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("file/step-2.part"), std::string::npos);
  }
  subject_.step(2);  // training goes on
}

TEST_F(CheckpointDamage, AFullDiskIsAnErrorThatNamesTheFile) {
  // Files of at most 100 bytes stand for a disk that has no more.
  save(subject_.model, *subject_.optimizer, folder_);
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 100;
  setrlimit(RLIMIT_FSIZE, &small);
  std::string text = "none";
  try {
    save(subject_.model, *subject_.optimizer, place_.file("step-2"));
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(text.find("step-2.part/"), std::string::npos) << text;
  EXPECT_NE(text.find("can't be written"), std::string::npos) << text;
  EXPECT_EQ(find_checkpoints(place_.path()).size(), 1u);
}

}  // namespace
}  // namespace sherd::testing
