// SPDX-License-Identifier: Apache-2.0
#include "plan/happens_before.h"

#include <algorithm>

namespace sherd {

void HappensBefore::begin(const Instruction& instruction) {
  const auto s = static_cast<size_t>(instruction.stream);
  now_ = stream_clock_[s];
  for (const int32_t event : instruction.waits) {
    if (event < 0 || index(event) >= event_clock_.size()) refuse("waits for an unknown event");
    const auto& other = event_clock_[index(event)];
    for (size_t i = 0; i < kStreams; ++i) now_[i] = std::max(now_[i], other[i]);
  }
  current_ = {instruction.stream, ++ticks_[s], instruction.action};
}

void HappensBefore::end(const Instruction& instruction) {
  const auto s = static_cast<size_t>(instruction.stream);
  stream_clock_[s] = now_;
  stream_clock_[s][s] = ticks_[s];
  if (instruction.signals != kNone) event_clock_[index(instruction.signals)] = stream_clock_[s];
}

bool HappensBefore::is_before(const Access& earlier) const {
  if (earlier.tick == 0 || now_[static_cast<size_t>(earlier.stream)] >= earlier.tick) return true;
  // An instruction may touch a slot once for each of its groups.
  return earlier.stream == current_.stream && earlier.tick == current_.tick;
}

void HappensBefore::refuse_after(const Access& earlier, const std::string& what) const {
  refuse(
      what, " is still used by '", to_text(earlier.action), "' on stream ", to_text(earlier.stream),
      ": nothing makes '", to_text(current_.action), "' wait for it");
}

void HappensBefore::require_rejoined() const {
  for (size_t s = 0; s < kStreams; ++s) {
    if (now_[s] < ticks_[s] && s != static_cast<size_t>(current_.stream)) {
      refuse("stream ", to_text(static_cast<Stream>(s)), " has not rejoined at the update");
    }
  }
}

}  // namespace sherd
