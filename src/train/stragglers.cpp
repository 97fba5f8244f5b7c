// SPDX-License-Identifier: Apache-2.0
#include "train/stragglers.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/host_names.h"
#include "comm/wait_time.h"
#include "device/timing.h"
#include "files/format_text.h"

namespace sherd {

Stragglers::Stragglers(const World& world)
    : measures_(
          world.size() > 1 && !world.device().is_cuda() && world.launcher() != Launcher::emulated),
      hosts_(host_names(world)) {}

void Stragglers::begin_step() {
  begin_ = std::chrono::steady_clock::now();
  waited_before_ = waited_nanoseconds();
}

double Stragglers::end_step() {
  const double waited = static_cast<double>(waited_nanoseconds() - waited_before_) * 1e-9;
  const double computed = std::max(0.0, seconds_since(begin_) - waited);
  // The first step also allocates.
  if (std::exchange(warmed_up_, true)) last_.push_back(computed);
  if (last_.size() > kSteps) last_.pop_front();
  return computed;
}

double Stragglers::mean() const {
  if (last_.size() < kSteps) return 0;
  return std::accumulate(last_.begin(), last_.end(), 0.0) / static_cast<double>(kSteps);
}

std::string Stragglers::judge(const RankSpeeds& means, int64_t step) {
  const bool behind = means.fastest > 0 && means.slowest > kBehind * means.fastest;
  const bool same = behind && means.slowest_rank == suspect_;
  confirmations_ = same ? confirmations_ + 1 : behind ? 1 : 0;
  suspect_ = behind ? means.slowest_rank : -1;
  if (confirmations_ != kConfirmations) return "";
  const auto earlier = named_.find(suspect_);
  if (earlier != named_.end() && step < earlier->second + kSilence) return "";
  named_[suspect_] = step;
  const auto times = format_text(
      "in the last %d steps it computed %.1f ms a step, the fastest rank %.1f ms (%.0f %% more), "
      "and all wait for it",
      static_cast<int>(kSteps), means.slowest * 1e3, means.fastest * 1e3,
      100 * (means.slowest / means.fastest - 1));
  return c10::str(
      "rank ", suspect_, " on host ", hosts_[static_cast<size_t>(suspect_)],
      " stays behind: ", times);
}

}  // namespace sherd
