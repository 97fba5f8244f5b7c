// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

class EventTable;

/// The events that the next owner of a slot waits for, within one section: those of the earlier
/// owners of any of its bytes. Streams are queues, so among several events of one stream only the
/// last one is needed, and a stream does not wait for the same signal twice.
class SlotWaits {
 public:
  SlotWaits(const std::vector<Slot>& slots, const EventTable& events);

  void note_signal(int32_t event) { signalled_[event] = ++now_; }
  /// Returns what a gather into the slot, on a stream, waits for.
  std::vector<int32_t> before_gather(int32_t slot, Stream stream);
  /// Returns what the compute stream waits for before it writes gradients to the slot.
  std::vector<int32_t> before_open(int32_t slot);

 private:
  void add(std::vector<int32_t>& waits, const std::vector<int32_t>& events, Stream stream);

  const std::vector<Slot>& slots_;
  const EventTable& events_;
  int64_t now_ = 0;
  std::map<int32_t, int64_t> signalled_;  // in this section, and when
  std::array<std::map<int32_t, int64_t>, kStreams> waited_;
};

}  // namespace sherd
