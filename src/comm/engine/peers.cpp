// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/peers.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "comm/time_text.h"

namespace sherd {
namespace {

/// How long messages may still be on their way that a rank sent before it failed or left.
constexpr auto kTransitTime = std::chrono::milliseconds(100);
/// How long after the end of a connection the reason may still come: the rank may have ended
/// because a third one failed, whose announcement is under way.
constexpr auto kLossTime = std::chrono::milliseconds(300);
/// How long other ranks may take to say where they are, once an operation is late.
constexpr auto kAnswerTime = std::chrono::milliseconds(1000);
constexpr size_t kMostAsked = 8;
constexpr auto kFlushPause = std::chrono::microseconds(20);

LaneCounts parse_counts(const std::string& text) {
  LaneCounts counts;
  std::istringstream in(text);
  int lane = 0;
  int64_t count = 0;
  while (in >> lane >> count) counts[lane] = count;
  return counts;
}

}  // namespace

Peers::Peers(Transport& transport)
    : transport_(transport), control_(transport), size_(transport.size()) {}

void Peers::receive(const Lanes& own) {
  using Kind = ControlChannel::Kind;
  transport_.progress();
  while (const auto message = control_.receive()) {
    const std::string text = message->text.data();
    const auto now = Operation::Clock::now();
    switch (message->kind) {
      case Kind::failure:
        if (!failure_) failure_ = {text, now};
        break;
      case Kind::leaving: departures_[message->rank] = {now, parse_counts(text)}; break;
      case Kind::question: control_.send(message->rank, Kind::answer, own.describe()); break;
      case Kind::answer: answers_[message->rank] = text; break;
      case Kind::notice: notices_.set(message->rank, text); break;
    }
  }
  control_.flush_some();
  for (const auto& [rank, why] : transport_.lost()) {
    losses_.try_emplace(rank, Failure{why, Operation::Clock::now()});
  }
}

std::optional<std::string> Peers::failure() const {
  if (!failure_ || Operation::Clock::now() <= failure_->heard + kTransitTime) return std::nullopt;
  return failure_->text;
}

std::optional<std::string> Peers::loss() const {
  if (failure_) return std::nullopt;  // it says more
  for (const auto& [rank, lost] : losses_) {
    const bool announced = departures_.contains(rank);
    if (announced || Operation::Clock::now() <= lost.heard + kLossTime) continue;
    return c10::str(
        "rank ", rank, " is gone: its process has ended, or the network to it is broken (",
        lost.text, ")", text_of_hosts({rank}));
  }
  return std::nullopt;
}

void Peers::check_departed(const LaneEntry& entry) const {
  if (departures_.empty()) return;
  for (const int64_t rank : entry.operation->waits_for()) {
    const auto found = departures_.find(rank);
    if (found == departures_.end()) continue;
    TORCH_CHECK(
        takes_part(rank, found->second, entry) || may_be_in_transit(found->second, entry), "rank ",
        rank,
        " has left: its process closed the world, or ended, without this operation. All ranks ",
        "must make the same calls", text_of_hosts({transport_.rank(), rank}));
  }
}

/// Returns whether the rank had submitted the operation before it left; it completes it then,
/// unless it ends before it could.
bool Peers::takes_part(int64_t rank, const Departure& departure, const LaneEntry& entry) const {
  if (losses_.contains(rank)) return false;
  if (entry.lane == Lanes::kNone) return false;  // sends and receives are not counted by peer
  const auto count = departure.started.find(entry.lane);
  return count != departure.started.end() && entry.number < count->second;
}

bool Peers::may_be_in_transit(const Departure& departure, const LaneEntry& entry) const {
  return Operation::Clock::now() < std::max(departure.heard, *entry.begin) + kTransitTime;
}

void Peers::check_late(LaneEntry& entry) {
  const auto missing = entry.operation->waits_for();
  const size_t asked = std::min(missing.size(), kMostAsked);
  if (!entry.peers_asked_since) {
    entry.peers_asked_since = Operation::Clock::now();
    answers_.clear();
    for (size_t i = 0; i < asked; ++i) {
      control_.send(missing[i], ControlChannel::Kind::question, "");
    }
  }
  const bool in_time = Operation::Clock::now() < *entry.peers_asked_since + kAnswerTime;
  if (in_time && answers_.size() < asked) return;
  std::string answers;
  for (size_t i = 0; i < asked; ++i) {
    const auto answer = answers_.find(missing[i]);
    answers += c10::str(
        i == 0 ? ": " : "; ", "rank ", missing[i], " ",
        answer == answers_.end() ? "does not answer" : answer->second);
  }
  TORCH_CHECK(
      false, "not done after ", in_seconds(entry.timeout), "; no word from rank",
      missing.size() == 1 ? " " : "s ", c10::Join(", ", missing), answers, text_of_hosts(missing));
}

std::string Peers::text_of_hosts(std::vector<int64_t> ranks) const {
  ranks.resize(std::min(ranks.size(), kMostAsked));
  std::string text;
  for (const int64_t rank : ranks) {
    const auto host = transport_.host_of(rank);
    if (host.empty()) return "";
    text += text.empty() ? c10::str(" (rank ", rank, " runs on ", host)
                         : c10::str(", rank ", rank, " on ", host);
  }
  return text.empty() ? "" : text + ")";
}

bool Peers::all_have_left() const {
  return std::ssize(departures_) >= size_ - 1;
}

void Peers::announce_failure(const std::string& error) noexcept {
  try {
    control_.send_to_all(ControlChannel::Kind::failure, error);
  } catch (const std::exception&) {
    // The transport itself is broken: the others will notice that too.
  }
}

void Peers::announce_leaving(const Submissions& submissions) {
  if (std::exchange(leaving_announced_, true)) return;
  std::string counts;
  for (const auto& [lane, count] : submissions.counts()) counts += c10::str(lane, " ", count, " ");
  control_.send_to_all(ControlChannel::Kind::leaving, counts);
}

void Peers::send_notice() {
  const auto text = notices_.take_own();
  if (!text.empty()) control_.send_to_all(ControlChannel::Kind::notice, text);
}

void Peers::flush(Milliseconds limit) noexcept {
  const auto deadline = Operation::Clock::now() + limit;
  try {
    while (!control_.flush_some() && Operation::Clock::now() < deadline) {
      transport_.progress();
      std::this_thread::sleep_for(kFlushPause);
    }
  } catch (const std::exception&) {
    // As in announce_failure().
  }
}

}  // namespace sherd
