// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/roster.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "comm/host_exchange.h"
#include "comm/rendezvous.h"
#include "comm/run_token.h"

namespace sherd {
namespace {

// What ranks write to the store, and what rank 0 answers, begins with one of these words.
constexpr const char* kGood = "good";
constexpr const char* kRefused = "refused";

std::string to_hex(const Token& token) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const auto byte : token) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Token from_hex(const std::string& text) {
  Token token{};
  TORCH_INTERNAL_ASSERT(text.size() == 2 * token.size());
  for (size_t i = 0; i < token.size(); ++i)
    token[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return token;
}

Token random_token() {
  Token token{};
  TORCH_CHECK(
      getentropy(token.data(), token.size()) == 0, "[comm.tcp] the system gives no random bytes");
  return token;
}

/// The token of the connections: the world's, which the store knows, together with the run's, which
/// it does not.
Token sealed(const std::string& token) {
  const auto half = [&](const char* side) {
    return token_proof(token + side).substr(0, std::tuple_size_v<Token>);
  };
  return from_hex(half("connects") + half("accepts"));
}

std::string to_line(const Roster::Entry& entry) {
  return c10::str(entry.address.text(), " ", entry.address.port(), " ", entry.machine);
}

Roster::Entry parse_line(std::istream& in) {
  std::string address, machine;
  int port = 0;
  in >> address >> port >> machine;
  return {parse_address(address, port), machine};
}

/// Collects the ranks' lines on rank 0.
class RosterMaker {
 public:
  explicit RosterMaker(int64_t size) : size_(size) {}

  /// Takes one rank's text; returns the verdict once it is known.
  std::optional<std::string> add(int64_t rank, const std::string& text) {
    std::istringstream in(text);
    std::string word;
    in >> word;
    if (word != kGood) return text;
    lines_ += text.substr(word.size()) + "\n";
    entries_.push_back(parse_line(in));
    if (rank + 1 < size_) return std::nullopt;
    const auto error = unreachable();
    if (!error.empty()) return c10::str(kRefused, " ", error);
    return c10::str(kGood, " ", to_hex(random_token()), "\n", lines_);
  }

 private:
  /// Returns which rank ranks of other machines can't reach, if one.
  std::string unreachable() const {
    const bool one_machine = std::all_of(entries_.begin(), entries_.end(), [&](const auto& each) {
      return each.machine == entries_.front().machine;
    });
    const auto found = std::find_if(entries_.begin(), entries_.end(), [](const auto& each) {
      return each.address.is_loopback();
    });
    if (one_machine || found == entries_.end()) return "";
    return c10::str(
        "rank ", found - entries_.begin(), " listens at ", found->address.text(),
        ", which ranks of other machines can't reach: there the store's name leads to the machine "
        "itself. Set SHERD_INTERFACE (or WorldOptions::interface) to a network interface that the "
        "other machines reach");
  }

  int64_t size_;
  std::string lines_;
  std::vector<Roster::Entry> entries_;
};

}  // namespace

std::string this_machine() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return c10::str(name.data(), "/", boot);
}

std::vector<std::string> hosts_of(const Roster& roster) {
  std::vector<std::string> hosts;
  bool several = false;
  for (const auto& each : roster.ranks) {
    several = several || each.machine != roster.ranks.front().machine;
    hosts.push_back(each.machine.substr(0, each.machine.find('/')));
  }
  if (!several) hosts.clear();
  return hosts;
}

Roster exchange_roster(
    c10d::Store& store,
    int64_t rank,
    int64_t size,
    const Roster::Entry& own,
    const std::string& refusal,
    std::chrono::milliseconds timeout) {
  const auto mine = refusal.empty() ? c10::str(kGood, " ", to_line(own))
                                    : c10::str(kRefused, " rank ", rank, ": ", refusal);
  const auto scope = c10::str("[comm.tcp] rank ", rank, " of ", size, ", start: ");
  RosterMaker maker(size);
  std::string verdict;
  try {
    verdict = decide_over_store(
        store, "roster", rank, size, mine,
        [&](int64_t giver, const std::string& text) { return maker.add(giver, text); }, timeout);
  } catch (const std::exception& error) {
    TORCH_CHECK_WITH(
        DistBackendError, false, scope, "a rank has ended before all were connected (",
        error.what(), ")");
  }
  std::istringstream in(verdict);
  std::string word, token;
  in >> word;
  if (word != kGood) hear_refusal(store, "roster", rank, size - 1);
  TORCH_CHECK_WITH(
      DistBackendError, word == kGood, scope,
      verdict.substr(std::min(verdict.size(), word.size() + 1)));
  in >> token;
  Roster roster;
  roster.token = sealed(token);
  for (int64_t i = 0; i < size; ++i) roster.ranks.push_back(parse_line(in));
  return roster;
}

}  // namespace sherd
