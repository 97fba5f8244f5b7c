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

/// How long closing or aborting a group may take.
constexpr auto kClosing = std::chrono::seconds(10);

/// Switches off c10d's threads that end the process when an operation fails or takes too long: here
/// errors are exceptions on the caller's thread. Environment variables that the user has set stay
/// as they are. To be called before a group is made.
void disable_c10d_watchdog();

/// Returns c10d's options of a new group.
c10::intrusive_ptr<NcclGroup::Options> group_options(
    const WorldOptions& options, const std::string& name);

/// The ranks of a group, and how they tell each other that they leave.
struct GroupPeers {
  std::shared_ptr<Departures> departures{};  ///< null: they don't
  std::vector<int64_t> ranks{};              ///< their indices in the world
  bool are_world = false;                    ///< all ranks: closing this group means leaving
};

/// A group that a StreamWatch can abort. Its failures are the errors that NCCL reports and the
/// departures of its ranks.
class AbortableGroup final : public Abortable {
 public:
  AbortableGroup(c10::intrusive_ptr<NcclGroup> group, c10::Device device, GroupPeers peers)
      : group_(std::move(group)), device_(device), peers_(std::move(peers)) {}

  std::string failure(std::chrono::milliseconds open_for) override;
  void abort() override;
  /// Returns whether abort() was called: NCCL's communicator must not be used any more. Any thread.
  bool aborted() const { return aborted_; }

 private:
  c10::intrusive_ptr<NcclGroup> group_;
  c10::Device device_;
  GroupPeers peers_;
  std::atomic<bool> aborted_{false};
};

}  // namespace sherd
