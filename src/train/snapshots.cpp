// SPDX-License-Identifier: Apache-2.0
#include "train/snapshots.h"

#include <c10/util/Exception.h>
#include <sys/random.h>

#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "data/across_ranks.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// Returns the name of the folder in memory, which is written in train.out: a run whose results
/// were removed must not go on from snapshots that were left.
std::string name_for(const TrainSection& train) {
  const auto path = fs::path(train.out) / "snapshots.txt";
  std::string name;
  if (train.resume != "none") std::getline(std::ifstream(path), name);
  if (name.starts_with("sherd-") && name.find('/') == std::string::npos) return name;
  uint64_t number = 0;
  TORCH_CHECK(getentropy(&number, sizeof(number)) == 0, "[train] the system gives no random bytes");
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "sherd-%016llx", static_cast<unsigned long long>(number));
  std::ofstream(path) << text.data() << std::endl;
  return text.data();
}

}  // namespace

Snapshots::Snapshots(const TrainSection& train, const World& world)
    : every_(world.launcher() == Launcher::emulated ? 0 : train.snapshot_every) {
  if (every_ == 0) return;
  const bool one_machine = world.size() == world.local_size();
  TORCH_CHECK_VALUE(
      largest_of_ranks(world, {one_machine ? 0 : 1})[0] == 0,
      "[train] train.snapshot_every = ", train.snapshot_every,
      ": the ranks are on several machines, and a snapshot is in the memory ",
      "of one; set it to 0, and train.save_every lower");
  folder_ =
      text_of_first_rank(world, [&] { return (fs::path("/dev/shm") / name_for(train)).string(); });
}

int64_t Snapshots::newest() const {
  if (every_ == 0) return -1;
  const auto found = find_checkpoints(folder_);
  return found.empty() ? -1 : found.back().first;
}

std::string Snapshots::folder_of(int64_t step) const {
  return (fs::path(folder_) / ("step-" + std::to_string(step))).string();
}

void Snapshots::remove_up_to(int64_t step, int64_t keep) const noexcept {
  if (every_ == 0) return;
  try {
    auto found = find_checkpoints(folder_);
    for (int64_t i = 0; i < keep && !found.empty(); ++i) found.pop_back();
    for (const auto& [number, folder] : found) {
      if (number <= step) remove_checkpoint(folder);
    }
    std::error_code code;
    fs::remove(folder_, code);  // if it is empty
  } catch (const std::exception&) {
    // They will be tried again after the next one.
  }
}

}  // namespace sherd
