// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "configuration/configuration.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

/// The comparisons that train.verify_replicas asks for.
class ReplicaChecks {
 public:
  /// `hosts`: of each rank. Keeps a reference to `train`.
  ReplicaChecks(const TrainSection& train, std::vector<std::string> hosts)
      : train_(train), hosts_(std::move(hosts)) {}

  /// Before the update of a step, when all replicas are complete and nothing has changed: compares
  /// them if it is time. Throws on all ranks, with parameter, ranks and hosts, if some differ.
  /// Collective.
  void verify(ModuleRef model, int64_t step);

 private:
  const TrainSection& train_;
  std::vector<std::string> hosts_;
  int64_t verified_ = 0;  // the last step in which they were equal
};

}  // namespace sherd
