// SPDX-License-Identifier: Apache-2.0
#include "train/replica_checks.h"

#include <c10/util/Exception.h>

#include "sherd/shard/diagnostics.h"

namespace sherd {

void ReplicaChecks::verify(ModuleRef model, int64_t step) {
  if (train_.verify_replicas == 0 || step % train_.verify_replicas != 0) return;
  const auto differences = verify_replicas(model);
  if (differences.empty()) {
    verified_ = step;
    return;
  }
  const auto& first = differences.front();
  std::string hosts;
  for (const int64_t rank : first.ranks) {
    hosts += c10::str(
        hosts.empty() ? "" : ", ", "rank ", rank, " runs on host ",
        hosts_[static_cast<size_t>(rank)]);
  }
  TORCH_CHECK(
      false, "[train] train.verify_replicas in step ", step, ": ", first.text(),
      differences.size() == 1
          ? ""
          : c10::str("; so it is with ", differences.size() - 1, " other weights"),
      " (", hosts, "): a bit has flipped in a memory, or a program has written there. ",
      verified_ == 0 ? std::string("No step of this run was verified before")
                     : c10::str("The replicas were equal up to step ", verified_),
      ": start again without that host from a checkpoint up to there (train.resume = \"",
      train_.out, "/step-<number>\")");
}

}  // namespace sherd
