// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/connect_ranks.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

namespace sherd {
namespace {

using RankDeadline = std::chrono::steady_clock::time_point;

/// How many connections of strangers may be open: then the oldest is closed.
constexpr int64_t kMostStrangers = 64;
constexpr int kAcceptedAtOnce = 16;
/// Files that the process may open besides: those of strangers, and some of its own.
constexpr int64_t kOtherFiles = kMostStrangers + 32;

/// What both ends of a new connection send first.
struct Introduction {
  static constexpr uint64_t kVersion = 0x73686572'64000001;  // "sherd", 1: of byte order, too
  using Proof = std::array<uint8_t, sizeof(Token) / 2>;

  uint64_t version = kVersion;
  Proof proof{};
  int64_t rank = 0;
};

/// Each end shows another half of the token, so none of them can send back the other's.
Introduction::Proof proof_of(const Token& token, bool accepts) {
  Introduction::Proof proof{};
  std::copy_n(token.begin() + (accepts ? proof.size() : 0), proof.size(), proof.begin());
  return proof;
}

/// Compares all bytes, so that the time shows nothing of a wrong one.
bool equal_secrets(const Introduction::Proof& a, const Introduction::Proof& b) {
  int difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

/// A connection whose other end is not known yet.
struct Candidate {
  enum class State { connecting, waiting, known, dropped };

  Descriptor socket;
  int64_t expected;  ///< the rank that this one connects to; -1: it was accepted
  State state;
  Introduction heard{};
  size_t heard_bytes = 0;

  bool is_accepted() const { return expected < 0; }
};

class RankConnector {
 public:
  RankConnector(const Descriptor& listener, const Roster& roster, int64_t rank)
      : listener_(listener), roster_(roster), rank_(rank), connections_(roster.ranks.size()) {}

  std::vector<Descriptor> run(RankDeadline deadline) {
    for (int64_t peer = 0; peer < rank_; ++peer) {
      auto socket = begin_connecting(roster_.ranks[static_cast<size_t>(peer)].address);
      candidates_.push_back({std::move(socket), peer, Candidate::State::connecting});
    }
    auto missing = missing_ranks();
    while (!missing.empty()) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now());
      TORCH_CHECK_WITH(
          DistBackendError, left.count() > 0, scope(), "rank", missing.size() == 1 ? " " : "s ",
          c10::Join(", ", missing), missing.size() == 1 ? " has" : " have",
          " not connected before the start limit");
      wait(std::min<int64_t>(left.count(), 1000));
      missing = missing_ranks();
    }
    return std::move(connections_);
  }

 private:
  std::string scope() const {
    return c10::str("[comm.tcp] rank ", rank_, " of ", roster_.ranks.size(), ", start: ");
  }

  std::vector<int64_t> missing_ranks() const {
    std::vector<int64_t> missing;
    for (int64_t peer = 0; peer < std::ssize(connections_); ++peer) {
      if (peer != rank_ && !connections_[static_cast<size_t>(peer)]) missing.push_back(peer);
    }
    return missing;
  }

  /// Waits until something happens, and deals with it.
  void wait(int64_t milliseconds) {
    std::vector<pollfd> watched{{listener_.number(), POLLIN, 0}};
    for (const auto& each : candidates_) {
      const bool connecting = each.state == Candidate::State::connecting;
      watched.push_back(
          {each.socket.number(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
    }
    poll(watched.data(), watched.size(), static_cast<int>(milliseconds));
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (watched[i + 1].revents != 0) advance(candidates_[i]);
    }
    std::erase_if(candidates_, [](const Candidate& each) {
      return each.state == Candidate::State::known || each.state == Candidate::State::dropped;
    });
    if (watched[0].revents != 0) accept_some();
  }

  /// A few at a time, so that each has been heard before it can be the oldest of too many.
  void accept_some() {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      Descriptor socket(
          accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket && (errno == EMFILE || errno == ENFILE) && drop_oldest_stranger()) continue;
      if (!socket) {  // no more; or one that is gone again
        if (errno == EMFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      candidates_.push_back({std::move(socket), -1, Candidate::State::waiting});
      const auto accepted = std::count_if(
          candidates_.begin(), candidates_.end(),
          [](const auto& each) { return each.is_accepted(); });
      if (accepted > std::ssize(roster_.ranks) + kMostStrangers) drop_oldest_stranger();
    }
  }

  /// Ranks introduce themselves at once, so the oldest that was accepted is a stranger. Returns
  /// false if there is none.
  bool drop_oldest_stranger() {
    const auto oldest = std::find_if(candidates_.begin(), candidates_.end(), [](const auto& each) {
      return each.is_accepted();
    });
    if (oldest == candidates_.end()) return false;
    candidates_.erase(oldest);
    return true;
  }

  void advance(Candidate& candidate) {
    if (candidate.state == Candidate::State::connecting) {
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(candidate.socket.number(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return give_up(candidate, std::strerror(error));
      candidate.state = Candidate::State::waiting;
      return introduce(candidate);
    }
    auto* into = reinterpret_cast<char*>(&candidate.heard) + candidate.heard_bytes;
    const auto count = recv(
        candidate.socket.number(), into, sizeof(Introduction) - candidate.heard_bytes,
        MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (count <= 0) {
      return give_up(candidate, count == 0 ? "it has closed the connection" : std::strerror(errno));
    }
    candidate.heard_bytes += static_cast<size_t>(count);
    if (candidate.heard_bytes == sizeof(Introduction)) judge(candidate);
  }

  /// A new connection takes these few bytes at once.
  void introduce(Candidate& candidate) {
    const Introduction own{
        Introduction::kVersion, proof_of(roster_.token, candidate.is_accepted()), rank_};
    const auto count = ::send(candidate.socket.number(), &own, sizeof(own), MSG_NOSIGNAL);
    if (count != sizeof(own)) give_up(candidate, std::strerror(errno));
  }

  void judge(Candidate& candidate) {
    const auto& heard = candidate.heard;
    const bool accepted = candidate.is_accepted();
    const auto size = std::ssize(roster_.ranks);
    const bool is_rank =
        accepted ? heard.rank > rank_ && heard.rank < size : heard.rank == candidate.expected;
    if (heard.version != Introduction::kVersion || !is_rank ||
        !equal_secrets(heard.proof, proof_of(roster_.token, !accepted)) ||
        connections_[static_cast<size_t>(heard.rank)]) {
      return give_up(candidate, "something else than a rank of this world answers there");
    }
    if (accepted) introduce(candidate);
    if (candidate.state == Candidate::State::dropped) return;
    set_connection_options(candidate.socket);
    connections_[static_cast<size_t>(heard.rank)] = std::move(candidate.socket);
    candidate.state = Candidate::State::known;
  }

  /// Drops a stranger; throws if it is the connection to a rank.
  void give_up(Candidate& candidate, const std::string& reason) const {
    candidate.state = Candidate::State::dropped;
    if (candidate.is_accepted()) return;
    const auto& address = roster_.ranks[static_cast<size_t>(candidate.expected)].address;
    TORCH_CHECK_WITH(
        DistBackendError, false, scope(), "can't connect to rank ", candidate.expected, " at ",
        address.text(), ":", address.port(), ": ", reason,
        ". If that is the wrong network, set SHERD_INTERFACE (or WorldOptions::interface) on that ",
        "rank");
  }

  const Descriptor& listener_;
  const Roster& roster_;
  int64_t rank_;
  std::vector<Candidate> candidates_;
  std::vector<Descriptor> connections_;  // by rank
};

}  // namespace

std::string too_few_files_for(int64_t size) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  const std::filesystem::directory_iterator files("/proc/self/fd");
  const int64_t open = std::distance(begin(files), end(files));
  const int64_t needed = open + size - 1 + kOtherFiles;
  if (needed <= static_cast<int64_t>(limit.rlim_cur)) return "";
  return c10::str(
      "it needs ", size - 1, " connections, one to each other rank, but may open ", limit.rlim_cur,
      " files, of which ", open, " are open: raise the limit with ulimit -n ", needed,
      ", or start the ranks with mpirun");
}

std::vector<Descriptor> connect_ranks(
    const Descriptor& listener,
    const Roster& roster,
    int64_t rank,
    std::chrono::steady_clock::time_point deadline) {
  return RankConnector(listener, roster, rank).run(deadline);
}

}  // namespace sherd
