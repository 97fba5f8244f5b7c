// SPDX-License-Identifier: Apache-2.0
#include "plan/section_waits.h"

#include <algorithm>

#include "plan/section_builder.h"

namespace sherd {
namespace {

bool share_a_byte(const Slot& one, const Slot& other) {
  return one.offset < other.offset + other.bytes && other.offset < one.offset + one.bytes;
}

/// Parameters or their transposed copies: what a release gives back.
bool holds_parameters(const Slot& slot) {
  return slot.name.rfind("parameters", 0) == 0 || slot.name.rfind("transposed", 0) == 0;
}

}  // namespace

SlotWaits::SlotWaits(const std::vector<Slot>& slots, const EventTable& events)
    : slots_(slots), events_(events) {}

void SlotWaits::add(
    std::vector<int32_t>& waits, const std::vector<int32_t>& events, Stream stream) {
  int32_t latest = kNone;
  for (const int32_t event : events) {
    const auto when = signalled_.find(event);
    if (when == signalled_.end()) continue;
    if (latest == kNone || when->second > signalled_[latest]) latest = event;
  }
  const auto& needed = latest == kNone ? events : std::vector{latest};
  auto& waited = waited_[static_cast<size_t>(stream)];
  for (const int32_t event : needed) {
    const auto known = waited.find(event);
    const auto signal = signalled_.find(event);
    const int64_t since = signal == signalled_.end() ? 0 : signal->second;
    if (known != waited.end() && known->second >= since) continue;
    waited[event] = now_;
    waits.push_back(event);
  }
}

std::vector<int32_t> SlotWaits::before_gather(int32_t slot, Stream stream) {
  std::vector<int32_t> released, reduced, sent;
  for (int32_t other = 0; other < std::ssize(slots_); ++other) {
    const auto& its = slots_[static_cast<size_t>(other)];
    if (!share_a_byte(slots_[static_cast<size_t>(slot)], its)) continue;
    if (holds_parameters(its)) {
      released.push_back(events_.released(other));
    } else {
      reduced.push_back(events_.reduced(other));
      sent.push_back(events_.sent(other));
    }
  }
  std::vector<int32_t> waits;
  add(waits, released, stream);
  add(waits, reduced, stream);
  add(waits, sent, stream);
  return waits;
}

std::vector<int32_t> SlotWaits::before_open(int32_t slot) {
  // Whose parameters were here is no matter: this stream has read them itself.
  std::vector<int32_t> reduced, sent;
  for (int32_t other = 0; other < std::ssize(slots_); ++other) {
    const auto& its = slots_[static_cast<size_t>(other)];
    if (holds_parameters(its) || !share_a_byte(slots_[static_cast<size_t>(slot)], its)) continue;
    reduced.push_back(events_.reduced(other));
    sent.push_back(events_.sent(other));
  }
  std::vector<int32_t> waits;
  add(waits, reduced, Stream::compute);
  add(waits, sent, Stream::compute);
  return waits;
}

}  // namespace sherd
