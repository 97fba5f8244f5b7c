// SPDX-License-Identifier: Apache-2.0
// Checkpoints take each other's place and are removed, whatever the file system thinks of it.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/file_system.h"
#include "checkpoint/small_model.h"
#include "files/temporary_folder.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

/// Another file system while it lives.
class OtherFileSystem {
 public:
  explicit OtherFileSystem(FileSystem other) : before_(file_system()) { file_system() = other; }
  ~OtherFileSystem() { file_system() = before_; }
  OtherFileSystem(const OtherFileSystem&) = delete;
  OtherFileSystem& operator=(const OtherFileSystem&) = delete;

 private:
  FileSystem before_;
};

class CheckpointFolders : public ::testing::Test {
 protected:
  void save_step(int64_t step) {
    save(
        subject_.model, *subject_.optimizer, place_.file("step-" + std::to_string(step)),
        {.numbers = {{"step", step}}});
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> result;
    for (const auto& [step, folder] : find_checkpoints(place_.path())) result.push_back(step);
    return result;
  }
  int64_t loaded(const std::string& name) {
    return load(subject_.model, *subject_.optimizer, place_.file(name)).numbers.at("step");
  }
  /// Everything in the folder whose name begins so.
  std::vector<std::string> left_of(const std::string& name) const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(place_.path())) {
      const auto file = entry.path().filename().string();
      if (file.starts_with(name)) result.push_back(file);
    }
    return result;
  }
  std::string pruned(int64_t keep, int64_t newest) const {
    try {
      keep_newest(place_.path(), keep, newest);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "none";
  }

  TemporaryFolder place_;
  World world_ = World::emulated({.size = 1});
  Subject subject_{world_, {.mesh = Mesh(world_, {{"dp", 1}})}, 1};
};

TEST_F(CheckpointFolders, AFolderInsideAnOldOneIsRemovedWithIt) {
  for (const int64_t step : {1, 2, 3}) save_step(step);
  fs::create_directories(place_.file("step-1/notes/deep"));
  std::ofstream(place_.file("step-1/notes/deep/file")) << "x";
  std::ofstream(place_.file("outside")) << "stays";
  fs::create_symlink(place_.file("outside"), place_.file("step-1/notes/link"));
  fs::create_directory_symlink(place_.path(), place_.file("step-1/loop"));
  EXPECT_EQ(pruned(1, 3), "none");
  EXPECT_EQ(steps(), std::vector<int64_t>{3});
  EXPECT_TRUE(left_of("step-1").empty());
  EXPECT_TRUE(left_of("step-2").empty());
  EXPECT_TRUE(fs::exists(place_.file("outside"))) << "a link is removed, not what it leads to";
}

TEST_F(CheckpointFolders, AFileThatCannotBeRemovedIsReportedOnceAndTriedAgain) {
  for (const int64_t step : {1, 2, 3}) save_step(step);
  std::ofstream(place_.file("step-1/.nfs0001")) << "open elsewhere";
  {
    FileSystem busy = file_system();
    busy.remove = [](const char* path) {
      const auto name = fs::path(path).filename().string();
      if (!name.starts_with(".nfs")) return std::remove(path);
      errno = EBUSY;
      return -1;
    };
    const OtherFileSystem other(busy);
    const auto text = pruned(1, 3);
    EXPECT_NE(text.find(".nfs0001"), std::string::npos) << text;
    EXPECT_NE(text.find(std::strerror(EBUSY)), std::string::npos) << text;
    EXPECT_EQ(steps(), std::vector<int64_t>{3});
    EXPECT_TRUE(left_of("step-2").empty()) << "the others are removed all the same";
    EXPECT_FALSE(fs::exists(place_.file("step-1"))) << "no half checkpoint has a checkpoint's name";
    EXPECT_EQ(pruned(1, 3), "none") << "said once";
    save_step(1);  // its name is free
    EXPECT_EQ(loaded("step-1"), 1);
    EXPECT_EQ(pruned(1, 3), "none") << "though the name for what is removed is taken";
    EXPECT_EQ(left_of("step-1").size(), 1u);
  }
  EXPECT_EQ(pruned(1, 3), "none");
  EXPECT_TRUE(left_of("step-1").empty()) << left_of("step-1").front();
}

TEST_F(CheckpointFolders, AFolderThatCannotBeMovedStaysComplete) {
  for (const int64_t step : {1, 2}) save_step(step);
  FileSystem locked = file_system();
  locked.rename = [](const char*, const char*) {
    errno = EACCES;
    return -1;
  };
  const OtherFileSystem other(locked);
  EXPECT_NE(pruned(1, 2).find("step-1 can't be removed"), std::string::npos);
  EXPECT_EQ(steps(), (std::vector<int64_t>{1, 2}));
}

TEST_F(CheckpointFolders, ASaveOverAnExistingStepNeedsNoExchange) {
  for (const int error : {EINVAL, ENOSYS}) {
    static int code;
    code = error;
    FileSystem old = file_system();
    old.exchange = [](const char*, const char*) {
      errno = code;
      return -1;
    };
    const OtherFileSystem other(old);
    subject_.step(0);
    save_step(1);
    save(subject_.model, *subject_.optimizer, place_.file("step-1"), {.numbers = {{"step", 77}}});
    EXPECT_EQ(loaded("step-1"), 77);
    EXPECT_EQ(left_of("step-1"), std::vector<std::string>{"step-1"});
  }
}

TEST_F(CheckpointFolders, AnyOtherErrorOfTheExchangeKeepsWhatWasThere) {
  save_step(1);
  FileSystem broken = file_system();
  broken.exchange = [](const char*, const char*) {
    errno = EIO;
    return -1;
  };
  const OtherFileSystem other(broken);
  EXPECT_THROW(
      save(subject_.model, *subject_.optimizer, place_.file("step-1"), {.numbers = {{"step", 2}}}),
      c10::Error);
  EXPECT_EQ(loaded("step-1"), 1);
}

TEST_F(CheckpointFolders, AReaderFindsOneOfThemWhenTheProcessEndsInBetween) {
  // As it is between the two renames of a file system that can't exchange.
  save_step(1);
  save(subject_.model, *subject_.optimizer, place_.file("new"), {.numbers = {{"step", 2}}});
  fs::rename(place_.file("step-1"), place_.file("step-1.old"));
  EXPECT_EQ(steps(), std::vector<int64_t>{1});
  EXPECT_EQ(loaded("step-1"), 1);
  fs::rename(place_.file("new"), place_.file("step-1.part"));
  EXPECT_EQ(steps(), std::vector<int64_t>{1});
  EXPECT_EQ(loaded("step-1"), 2) << "the newer one";
  fs::remove(place_.file("step-1.part/state.json"));
  EXPECT_EQ(loaded("step-1"), 1) << "the newer one is not whole";
  save_step(3);
  EXPECT_EQ(pruned(2, 3), "none");
  EXPECT_EQ(loaded("step-1"), 1) << "it counts as kept";
  save(subject_.model, *subject_.optimizer, place_.file("step-1"), {.numbers = {{"step", 4}}});
  EXPECT_EQ(loaded("step-1"), 4);
  EXPECT_EQ(left_of("step-1"), std::vector<std::string>{"step-1"});
}

TEST_F(CheckpointFolders, ALossScaleOfAtMostOneComesBack) {
  for (const double scale : {0.25, 1.0, 8.0}) {
    AdamW scaled(subject_.model, {.scaling = LossScaling{.initial = scale}});
    save(subject_.model, scaled, place_.file("step-1"));
    AdamW other(subject_.model, {.scaling = LossScaling{.initial = 1024}});
    load(subject_.model, other, place_.file("step-1"));
    EXPECT_EQ(other.loss_scale(), scale);
  }
  // Where there was none, there is nothing to go on with.
  AdamW plain(subject_.model);
  save(subject_.model, plain, place_.file("step-1"));
  AdamW other(subject_.model, {.scaling = LossScaling{.initial = 1024}});
  load(subject_.model, other, place_.file("step-1"));
  EXPECT_EQ(other.loss_scale(), 1024);
  EXPECT_EQ(plain.loss_scale(), 1);
}

TEST_F(CheckpointFolders, UpdatesThatAFrozenParameterMissedComeBack) {
  const auto set_trainable = [](Subject& subject, bool trainable) {
    subject.model->first->linear->weight.set_requires_grad(trainable);
  };
  subject_.step(0);
  set_trainable(subject_, false);
  for (const int64_t i : {1, 2, 3}) subject_.step(i);
  save_step(4);
  Subject other(world_, {.mesh = Mesh(world_, {{"dp", 1}})}, 2);
  load(other.model, *other.optimizer, place_.file("step-4"));
  set_trainable(subject_, true);
  // The update of the first step shows in the loss of the second.
  for (const int64_t i : {4, 5, 6}) EXPECT_EQ(other.step(i), subject_.step(i)) << i;
}

}  // namespace
}  // namespace sherd::testing
