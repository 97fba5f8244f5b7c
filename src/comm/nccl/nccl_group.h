// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <vector>

#include "comm/departures.h"
#include "comm/streams.h"
#include "sherd/comm/world.h"

namespace sherd {

using NcclGroup = c10d::ProcessGroupNCCL;

constexpr auto kClosing = std::chrono::seconds(10);  // for closing or aborting a group

/// c10d by default ends the process from a thread of its own when an operation fails or takes too
/// long. Here errors are exceptions of the caller's thread, so its watchers are asked to leave it
/// alone, unless the user has asked them for something. To be called before a group is made.
void disable_c10d_watchdog();

c10::intrusive_ptr<NcclGroup::Options> group_options(
    const WorldOptions& options, const std::string& name);

/// The ranks of a group, of the world, and how they say that they leave (null: they don't).
struct GroupPeers {
  std::shared_ptr<Departures> departures{};
  std::vector<int64_t> ranks{};
  bool are_world = false;  // who closes this group leaves
};

/// Asks NCCL for a group's errors, and the peers for their departures, and aborts it.
class GroupKeeper final : public StreamKeeper {
 public:
  GroupKeeper(c10::intrusive_ptr<NcclGroup> group, c10::Device device, GroupPeers peers)
      : group_(std::move(group)), device_(device), peers_(std::move(peers)) {}

  std::string failure(std::chrono::milliseconds open_for) override;
  void give_up() override;
  bool gave_up() const { return given_up_; }

 private:
  c10::intrusive_ptr<NcclGroup> group_;
  c10::Device device_;
  GroupPeers peers_;
  std::atomic<bool> given_up_{false};
};

}  // namespace sherd
