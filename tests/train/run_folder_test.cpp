// SPDX-License-Identifier: Apache-2.0
// What a run does around its steps: the lock of its folder, what it reads, what it says.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "files/temporary_folder.h"
#include "train/metrics.h"
#include "train/not_finite.h"
#include "train/run_lock.h"
#include "train/train.h"

namespace sherd {
namespace {

TEST(RunLock, ASecondRunIsRefusedAndNamesTheProcessThatHasTheFolder) {
  const testing::TemporaryFolder folder;
  const RunLock::Options at_once{.patience = std::chrono::milliseconds(0)};
  const auto path = folder.file("run.lock");
  {
    const RunLock lock(folder.path(), at_once);
    EXPECT_TRUE(lock.missing().empty());
    try {
      const RunLock second(folder.path(), at_once);
      FAIL() << "two runs have the folder";
    } catch (const c10::ValueError& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("process " + std::to_string(getpid()) + " on "), std::string::npos);
      EXPECT_NE(text.find(", since 20"), std::string::npos) << text;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  // What a dead process has left is no lock.
  std::ofstream(path) << "process 1 on another host\n";
  const RunLock lock(folder.path(), at_once);
}

TEST(RunLock, AFileSystemWithoutLocksIsReportedAndDoesNotStopTheRun) {
  const testing::TemporaryFolder folder;
  const auto none = [](int, int) {
    errno = ENOLCK;
    return -1;
  };
  const RunLock lock(folder.path(), {.lock = none});
  const RunLock second(folder.path(), {.lock = none});
  EXPECT_NE(lock.missing().find("has no locks"), std::string::npos) << lock.missing();
}

TEST(NotFinite, TheFirstCulpritIsNearestToTheLossInTheEarliestMicroBatch) {
  const std::vector<std::string> names{"embedding", "layer0", "layer1", "head"};
  const auto found = [](const char* name, int64_t micro_batch) {
    return Finding{name, Fault::nan, 7, micro_batch, {}};
  };
  auto exploding = found("head", 1);
  exploding.fault = Fault::exploding;
  const auto ordered = in_order_of_backward(
      {exploding, found("embedding", 2), found("layer0", 2), found("layer1", 2), found("head", 3)},
      names);
  ASSERT_EQ(ordered.size(), 4U);
  EXPECT_EQ(ordered[0].parameter, "layer1");
  EXPECT_EQ(ordered[2].parameter, "embedding");
  EXPECT_EQ(ordered[3].parameter, "head");
  const auto text = not_finite_text({}, 107, ordered, "run/step-106");
  EXPECT_EQ(
      text.rfind(
          "[train] step 107 is not finite: the gradient of parameter 'layer1' is NaN in "
          "micro-batch 2; then also those of 'layer0', 'embedding', 'head'.",
          0),
      0U)
      << text;
}

TEST(MetricsFile, ALineIsAmendedInItsPlace) {
  const testing::TemporaryFolder folder;
  const auto path = folder.file("metrics.jsonl");
  StepMetrics metrics;
  {
    MetricsFile file(path, 0);
    for (metrics.step = 1; metrics.step <= 2; ++metrics.step) {
      metrics.val_loss.reset();
      file.add(metrics);
      metrics.val_loss = 0.5;
      file.amend(metrics);
    }
  }
  std::ofstream(path, std::ios::app)
      << "{\"step\": \"three\"}\nno JSON\n{\"step\": 3, \"planned_bytes\": \"many\"}\n{\"ste";
  MetricsFile file(path, 3);
  ASSERT_EQ(file.kept().size(), 3U);
  EXPECT_EQ(file.kept()[0].val_loss, 0.5);
  EXPECT_EQ(file.kept()[1].val_loss, 0.5);
  EXPECT_EQ(file.kept()[2].planned_bytes, 0);
  EXPECT_EQ(file.unreadable(), 2);  // a line that was cut short is none
  // A run that goes on may amend the last line of the run before.
  metrics = file.kept()[2];
  metrics.val_loss = 0.25;
  file.amend(metrics);
  const MetricsFile again(path, 3);
  ASSERT_EQ(again.kept().size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again.kept()[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(again.kept()[i].val_loss, i < 2 ? 0.5 : 0.25);
  }
}

std::atomic<bool> training =
    false;  // since the first backward: what is measured before does not count
std::atomic<int64_t> items = 0;
std::atomic<int64_t> copies = 0;

struct HostReads {
  int64_t items = 0;   ///< numbers read off a tensor: on a GPU each would wait for the device
  int64_t copies = 0;  ///< tensors that are to be on a device, or on the host
};

HostReads host_reads(int64_t steps, int64_t log_every) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.file("text")) << std::string(1000, 'x');
  Configuration configuration;
  configuration.model.dim = 16;
  configuration.model.layers = 1;
  configuration.model.heads = 2;
  configuration.data.text = folder.file("text");
  configuration.data.seq = 8;
  configuration.train.steps = steps;
  configuration.train.log_every = log_every;
  configuration.train.out = folder.file("out");
  configuration.device.kind = "cpu";
  training = false;
  items = copies = 0;
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = call.name();
        if (name.starts_with("autograd::engine")) training = true;
        if (training && name == "aten::item") ++items;
        if (training && name == "aten::to") ++copies;
        return nullptr;
      }));
  train(configuration);
  at::removeCallback(handle);
  // Every step is written down, however seldom one is read.
  EXPECT_EQ(std::ssize(MetricsFile(folder.file("out/metrics.jsonl"), steps).kept()), steps);
  return {items, copies};
}

TEST(HostReads, BetweenLoggedStepsTheHostReadsNothingButWhetherTheNormIsFinite) {
  const auto few = host_reads(12, 100);
  const auto more = host_reads(24, 100);
  // One a step is AdamW's on CPUs; on a GPU it does not ask. The rest does not grow with the steps:
  // until the last checkpoint is written, ranks ask each other a few times.
  EXPECT_LT(more.items - few.items, 2 * 12);
  const auto logged = host_reads(24, 1);
  EXPECT_GE(logged.copies - more.copies, 2 * 23);  // losses and norms, each step
}

}  // namespace
}  // namespace sherd
