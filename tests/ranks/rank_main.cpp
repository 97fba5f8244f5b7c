// SPDX-License-Identifier: Apache-2.0
// The main function of tests that run on several ranks. Rank 0 prints as GoogleTest does, the
// others only their failures. A test that takes too long is named, and its process ended: later
// than the library would end an operation, so that the library's error, which says more, comes
// first.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "comm/backends.h"
#include "ranks/rank_world.h"

namespace sherd::testing {
namespace {

std::optional<World>& world_slot() {
  static std::optional<World> world;
  return world;
}

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::stoll(value);
}

World make_world() {
  const char* variable = std::getenv("SHERD_TEST_BACKEND");
  const std::string backend = variable == nullptr ? "mpi" : variable;
  const char* device = std::getenv("SHERD_TEST_DEVICE");
  if (backend == "emulated") {
    const int64_t size = number_from("SHERD_TEST_WORLD", 5);
    return World::emulated(
        {.rank = size / 2, .size = size, .device = c10::Device(device ? device : "cpu")});
  }
  for (const auto& entry : backends()) {
    if (entry.name != backend) continue;
    return World::from_environment(
        {.backend = entry.backend, .operation_timeout = std::chrono::seconds(60)});
  }
  TORCH_CHECK_VALUE(false, "SHERD_TEST_BACKEND is ", backend, "; there is no such backend");
}

/// Ends the process when one test takes too long.
class Watch : public ::testing::EmptyTestEventListener {
 public:
  explicit Watch(int64_t rank) : rank_(rank), limit_(number_from("SHERD_TEST_LIMIT", 180)) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  void OnTestStart(const ::testing::TestInfo& info) override {
    std::lock_guard lock(mutex_);
    name_ = std::string(info.test_suite_name()) + "." + info.name();
    begin_ = std::chrono::steady_clock::now();
  }
  void OnTestEnd(const ::testing::TestInfo&) override {
    std::lock_guard lock(mutex_);
    name_.clear();
  }

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      std::lock_guard lock(mutex_);
      if (!name_.empty() &&
          std::chrono::steady_clock::now() - begin_ > std::chrono::seconds(limit_)) {
        std::cerr << "rank " << rank_ << " hangs in " << name_ << " (limit " << limit_ << " s)"
                  << std::endl;
        _exit(124);
      }
    }
  }

  int64_t rank_;
  int64_t limit_;
  std::mutex mutex_;
  std::string name_;
  std::chrono::steady_clock::time_point begin_;
  std::jthread thread_;  // last: ends before what it looks at
};

/// Of ranks other than 0: failures alone, with the rank.
class FailurePrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int64_t rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    // The file name of an exception is null, and printing a null pointer ends all output of a
    // stream.
    const char* file = result.file_name() == nullptr ? "exception" : result.file_name();
    std::cerr << "rank " << rank_ << ": " << file << ":" << result.line_number() << ": "
              << result.message() << std::endl;
  }
  void OnTestEnd(const ::testing::TestInfo& info) override {
    if (info.result()->Failed()) {
      std::cerr << "rank " << rank_ << " failed " << info.test_suite_name() << "." << info.name()
                << std::endl;
    }
  }

 private:
  int64_t rank_;
};

}  // namespace

const World& test_world() {
  return *world_slot();
}

}  // namespace sherd::testing

int main(int argc, char** argv) {
  using namespace sherd::testing;
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
  ::testing::InitGoogleTest(&argc, argv);
  world_slot() = make_world();
  const int64_t rank = test_world().rank();
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new Watch(rank));
  if (rank != 0 && !is_emulated()) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  const int result = RUN_ALL_TESTS();
  const bool ran_none = ::testing::UnitTest::GetInstance()->test_to_run_count() == 0;
  world_slot().reset();
  if (ran_none) std::cerr << "no test matches the filter" << std::endl;
  return ran_none ? 1 : result;
}
