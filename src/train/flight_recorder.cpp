// SPDX-License-Identifier: Apache-2.0
#include "train/flight_recorder.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <filesystem>

#include "comm/flight/flight_ring.h"
#include "data/across_ranks.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

std::string file_of(int64_t rank) {
  return c10::str("rank-", rank, ".ring");
}

/// Moves the file of an earlier process, which may be wanted for `sherd blame`.
void move_earlier(const fs::path& folder, const std::string& name) {
  if (!fs::exists(folder / name)) return;
  fs::create_directories(folder / "before");
  fs::rename(folder / name, folder / "before" / name);
}

}  // namespace

std::string open_flight_recorder(const Configuration& configuration, const World& world) {
  const auto& train = configuration.train;
  if (train.flight_recorder == 0 || world.launcher() == Launcher::emulated) return "";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto run = numbers_of_first_rank(world, {std::chrono::nanoseconds(now).count()})[0];
  const auto folder = fs::path(train.out) / "flight";
  try {
    fs::create_directories(folder);
    move_earlier(folder, file_of(world.rank()));
    if (world.rank() == 0) {  // an earlier run may have had more ranks
      for (int64_t rank = world.size(); fs::exists(folder / file_of(rank)); ++rank)
        move_earlier(folder, file_of(rank));
    }
    FlightRing::open(
        {.path = folder / file_of(world.rank()),
         .entries = train.flight_recorder,
         .run = run,
         .rank = world.rank(),
         .size = world.size(),
         .backend = world.communicator().backend()});
  } catch (const c10::Error& error) {
    return c10::str("there is no flight recorder: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return c10::str("there is no flight recorder: ", error.what());
  }
  return "";
}

void begin_flight_recording(int64_t steps_before) {
  if (auto* ring = FlightRing::current()) ring->set_steps_before(steps_before);
}

void record_end(const std::function<void()>& run) {
  const auto mark = [](flight::Reason reason, const std::string& text) {
    if (auto* ring = FlightRing::current()) ring->mark(reason, text);
  };
  try {
    run();
  } catch (const c10::Error& error) {
    mark(flight::Reason::error, error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    mark(flight::Reason::error, error.what());
    throw;
  }
  mark(flight::Reason::ended, "");
}

}  // namespace sherd
