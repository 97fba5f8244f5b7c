// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/control_channel.h"

#include <algorithm>

namespace sherd {
namespace {

constexpr int kControlTag = 0;

}  // namespace

void ControlChannel::send(int64_t peer, Kind kind, const std::string& text) {
  auto& [message, request] = outgoing_.emplace_back();
  message.kind = kind;
  message.rank = static_cast<int32_t>(transport_.rank());
  std::copy_n(text.begin(), std::min(text.size(), message.text.size() - 1), message.text.begin());
  request = transport_.send(peer, kControlTag, &message, sizeof(message));
}

void ControlChannel::send_to_all(Kind kind, const std::string& text) {
  for (int64_t peer = 0; peer < transport_.size(); ++peer) {
    if (peer != transport_.rank()) send(peer, kind, text);
  }
}

std::optional<ControlChannel::Message> ControlChannel::receive() {
  if (transport_.size() == 1) return std::nullopt;
  if (!request_) request_ = transport_.receive_any(kControlTag, &incoming_, sizeof(incoming_));
  if (!request_->test()) return std::nullopt;
  const auto message = incoming_;
  request_ = transport_.receive_any(kControlTag, &incoming_, sizeof(incoming_));
  return message;
}

bool ControlChannel::flush_some() {
  std::erase_if(
      outgoing_, [](auto& message) { return !message.request || message.request->test(); });
  return outgoing_.empty();
}

}  // namespace sherd
