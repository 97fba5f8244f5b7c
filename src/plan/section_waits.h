// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd {

class EventTable;

/// Which events the next owner of a slot waits for, within one section: those that had any of its
/// bytes before. Streams are queues, so of several who signalled from one stream the last stands
/// for all; and what a stream has waited for once it need not wait for again.
class SlotWaits {
 public:
  SlotWaits(const std::vector<Slot>& slots, const EventTable& events);

  void note_signal(int32_t event) { signalled_[event] = ++now_; }
  /// A gather into the slot, on a stream.
  std::vector<int32_t> before_gather(int32_t slot, Stream stream);
  /// Gradients written to the slot, by the compute stream.
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
