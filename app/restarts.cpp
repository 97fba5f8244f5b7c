// SPDX-License-Identifier: Apache-2.0
#include "restarts.h"

#include <c10/util/Exception.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "configuration/fewer_ranks.h"
#include "exit_code.h"
#include "local_ranks.h"

namespace sherd::app {
namespace {

constexpr int kNoProgram = 127;  // exit code of a shell, and of ours, where mpirun can't be started

bool helps(int code) {
  return code != 0 && code != kRefused && code != kNotFinite && code != kNoProgram;
}

/// Ranks whose mpirun has died are our children now (see PR_SET_CHILD_SUBREAPER): they were asked
/// to stop, and the folder of the run is theirs until then.
void wait_for_orphans() {
  while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
  }
}

}  // namespace

void check_restarts(const Restarts& restarts, const Configuration& configuration, int64_t ranks) {
  const auto& [most, min_ranks] = restarts;
  TORCH_CHECK_VALUE(
      !min_ranks || most > 0, "--min-ranks ", *min_ranks,
      ": it says how a run starts again; give --restarts as well");
  if (most == 0) return;
  TORCH_CHECK_VALUE(
      !has_launcher(), "--restarts ", most, ": a launcher has started the ranks, and must start ",
      "them again: torchrun with --max-restarts, Slurm with --requeue (docs/machines.md)");
  const auto& resume = configuration.train.resume;
  TORCH_CHECK_VALUE(
      resume == "auto", "--restarts ", most, ": train.resume = \"", resume,
      "\", so that each start would begin there; remove the key");
  TORCH_CHECK_VALUE(
      configuration.device.emulate == 0, "--restarts ", most,
      ": device.emulate is set, and an emulated world has no ranks that could die; remove one");
  if (!min_ranks) return;
  TORCH_CHECK_VALUE(
      *min_ranks <= ranks, "--min-ranks ", *min_ranks, ": the run has ", ranks, " ranks");
  TORCH_CHECK_VALUE(
      *min_ranks == ranks || fewer_ranks(configuration, ranks, ranks, *min_ranks), "--min-ranks ",
      *min_ranks, ": with ", *min_ranks, *min_ranks + 1 == ranks ? "" : " or more", " of ", ranks,
      " ranks, no number of micro-batches of ", configuration.data.batch,
      " sequences has the samples of a step, ",
      "or shard.outer and the keys of parallel don't divide the ranks; give a smaller number, or ",
      "change data.batch and data.micro_batches (it is ", configuration.data.micro_batches, ")");
}

int train_with_restarts(
    const Restarts& restarts,
    const Configuration& configuration,
    int64_t ranks,
    const std::vector<std::string>& arguments) {
  if (restarts.most > 0) prctl(PR_SET_CHILD_SUBREAPER, 1);
  int64_t now = ranks;
  for (int64_t restart = 0;; ++restart) {
    auto words = arguments;
    if (now != ranks) {
      const auto micro_batches = micro_batches_for(configuration, ranks, now);
      words.insert(
          words.end(), {"--set", "data.micro_batches=" + std::to_string(micro_batches.value())});
    }
    const int code = start_local_ranks(now, words);
    if (restarts.most == 0 || stop_requested() || !helps(code)) return code;
    if (restart == restarts.most) {
      std::fprintf(
          stderr, "[launch] started again %lld times (--restarts): that was the last\n",
          static_cast<long long>(restart));
      return code;
    }
    wait_for_orphans();
    if (restarts.min_ranks) {
      now = fewer_ranks(configuration, ranks, now, *restarts.min_ranks).value_or(now);
    }
    std::fprintf(
        stderr,
        "[launch] the run ended with exit code %d: starting %lld ranks again from the newest "
        "checkpoint (restart %lld of %lld)\n",
        code, static_cast<long long>(now), static_cast<long long>(restart + 1),
        static_cast<long long>(restarts.most));
    if (stop_requested()) return code;
  }
}

}  // namespace sherd::app
