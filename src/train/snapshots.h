// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "configuration/configuration.h"
#include "sherd/comm/world.h"

namespace sherd {

/// The snapshots of a run (train.snapshot_every): checkpoints in the memory of the machine,
/// /dev/shm, so that ranks that are started again lose few steps.
class Snapshots {
 public:
  /// Finds the folder that belongs to train.out, or chooses one. Throws if the ranks are on several
  /// machines. Collective.
  Snapshots(const TrainSection& train, const World& world);

  bool due(int64_t step) const { return every_ > 0 && step % every_ == 0; }
  /// Returns the newest step of which there is a snapshot; -1 if there is none. For the first rank.
  int64_t newest() const;
  std::string folder_of(int64_t step) const;
  /// Removes snapshots of steps up to this one, but not the newest `keep`. For the first rank. Does
  /// not throw.
  void remove_up_to(int64_t step, int64_t keep) const noexcept;

 private:
  int64_t every_;
  std::string folder_;
};

}  // namespace sherd
