// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/mailbox.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace sherd {

bool TcpMessage::accepts(int64_t from, int64_t length) {
  if (length == bytes || (any_length && length < bytes)) return true;
  error = c10::str(
      "rank ", from, " sent ", length, " bytes where ", bytes,
      " were expected: the ranks passed tensors of different sizes, or made different calls");
  return false;
}

void Mailbox::add_receive(TcpMessagePtr receive) {
  receives_[{receive->peer, receive->tag}].push_back(std::move(receive));
}

TcpMessagePtr Mailbox::take_receive(int64_t from, int tag) {
  for (const int64_t rank : {from, kAnyRank}) {
    const auto found = receives_.find({rank, tag});
    if (found == receives_.end()) continue;
    auto& waiting = found->second;
    TcpMessagePtr receive;
    while (!receive && !waiting.empty()) {
      if (!waiting.front()->cancelled) receive = std::move(waiting.front());
      waiting.pop_front();
    }
    if (waiting.empty()) receives_.erase(found);
    if (receive) return receive;
  }
  return nullptr;
}

void Mailbox::add_early(int tag, Early early) {
  early_[{early.from, tag}].push_back(std::move(early));
}

std::optional<Mailbox::Early> Mailbox::take_early(int64_t from, int tag) {
  const auto found = std::find_if(early_.begin(), early_.end(), [&](const auto& entry) {
    return entry.first.second == tag && (from == kAnyRank || entry.first.first == from);
  });
  if (found == early_.end()) return std::nullopt;
  auto early = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) early_.erase(found);
  return early;
}

}  // namespace sherd
