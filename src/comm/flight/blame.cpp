// SPDX-License-Identifier: Apache-2.0
#include "comm/flight/blame.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "comm/flight/blame_words.h"
#include "comm/flight/collective_table.h"
#include "files/format_text.h"
#include "sherd/plan/program.h"

namespace sherd {
namespace {

using namespace flight;

/// The thread that moves messages gives a sign of life every 100 ms.
constexpr double kSilent = 0.25;
/// Without an error of any rank: what is longer than ranks usually wait for each other.
constexpr double kLongSilence = 2;
constexpr double kLongStay = 1;

/// Compares the logs of one run.
class Reading {
 public:
  explicit Reading(const std::vector<FlightLog>& logs) : logs_(logs), table_(logs) {
    for (const auto& log : logs_) {
      known_.insert(log.rank);
      end_ = std::max(end_, log.alive);
      went_wrong_ = went_wrong_ || has_failed(log) || log.stopped != 0;
    }
  }

  Blame result() {
    add_unknown_ranks();
    add_silent_ranks();
    if (!all_have_ended()) {
      if (silent_.empty()) add_difference();
      if (silent_.empty()) add_other_calls();
      add_missing();
      add_first_error();
    }
    const bool well = sentences_.empty();
    if (well) add_health();
    add_slow_rank();
    return {c10::Join(" ", sentences_), well};
  }

 private:
  static bool has_failed(const FlightLog& log) {
    return log.reason == Reason::error || log.reason == Reason::time_limit;
  }
  bool all_have_ended() const {
    return std::all_of(logs_.begin(), logs_.end(), [](const FlightLog& log) {
      return log.reason == Reason::ended;
    });
  }
  const FlightLog& log_of(int64_t rank) const {
    return *std::find_if(
        logs_.begin(), logs_.end(), [&](const FlightLog& log) { return log.rank == rank; });
  }
  std::string with_host(int64_t rank) const {
    return c10::str("rank ", rank, " (host ", log_of(rank).host, ")");
  }
  std::string with_hosts(const std::vector<int64_t>& ranks) const {
    if (ranks.size() == 1) return with_host(ranks.front());
    std::set<std::string> hosts;
    for (const int64_t rank : ranks) hosts.insert(log_of(rank).host);
    return c10::str(
        words_of_ranks(ranks), hosts.size() == 1 ? " (host " : " (hosts ",
        c10::Join(", ", std::vector(hosts.begin(), hosts.end())), ")");
  }

  /// Returns the step, section and unit in which a rank was.
  static std::string place_of(const FlightLog& log) {
    if (log.step == 0) return "before its first step";
    auto text = c10::str("in step ", log.step);
    const FlightEntry* section = nullptr;
    const FlightEntry* inside = nullptr;
    for (const auto& entry : log.entries) {
      if (entry.type == Type::step) section = inside = nullptr;
      if (entry.type == Type::section) section = &entry, inside = nullptr;
      const bool on_compute =
          entry.type == Type::instruction && entry.stream == static_cast<uint8_t>(Stream::compute);
      const bool of_unit = on_compute || entry.type == Type::call || entry.type == Type::exchange;
      if (of_unit && !entry.name.empty()) inside = &entry;
    }
    if (!section) return "after step " + std::to_string(log.step);
    text += ", " + section->name;
    if (!inside) return text;
    const bool waits = inside->type == Type::instruction && inside->ended == 0 &&
                       inside->kind == static_cast<uint8_t>(Action::wait);
    return text + (waits ? ", waiting for the parameters of '" : ", in unit '") + inside->name +
           "'";
  }

  void add(const std::string& sentence) { sentences_.push_back(as_sentence(sentence)); }

  void add_unknown_ranks() {
    std::vector<int64_t> unknown;
    for (int64_t rank = 0; rank < logs_.front().size; ++rank) {
      if (!known_.contains(rank)) unknown.push_back(rank);
    }
    if (unknown.empty()) return;
    add(c10::str(
        words_of_ranks(unknown), " of ", logs_.front().size,
        " left no record: ", unknown.size() == 1 ? "it" : "they",
        " did not start, could not write to train.out, or wrote to another disk"));
  }

  // ---- ranks that ended without a word ------------------------------------------------------

  void add_silent_ranks() {
    for (const auto& log : logs_) {
      if (log.reason != Reason::none || log.stopped != 0) continue;
      const double silence = end_ - log.alive;
      const bool gone = state_of_process_of(log) == 'Z';
      if (gone || silence > (went_wrong_ ? kSilent : kLongSilence)) silent_.push_back(log.rank);
    }
    for (const int64_t rank : silent_) {
      const auto& log = log_of(rank);
      const double silence = end_ - log.alive;
      add(c10::str(
          with_host(rank), " gave no sign of life after ", words_of_moment(log.alive),
          silence < 0.01 ? "" : ", " + words_of_seconds(silence) + " before the last of the others",
          ": ", words_of_fate(log), "; it was ", place_of(log)));
    }
  }

  // ---- ranks that did something else --------------------------------------------------------

  void add_difference() {
    const auto found = table_.first_difference();
    if (!found) return;
    differs_ = true;
    add(c10::str(
        with_hosts(found->others), " called ", words_of_collective(*found->of_others), " ",
        place_of_entry(*found->of_others), ", where ", words_of_ranks(found->most), " called ",
        words_of_collective(*found->of_most),
        found->most.size() == found->others.size() ? "; one of the two is wrong" : ""));
  }

  static std::string place_of_entry(const FlightEntry& entry) {
    return entry.step == 0 ? "before the first step" : c10::str("in step ", entry.step);
  }

  /// Ranks may call different units, unless that led to an error. Those without data call none.
  void add_other_calls() {
    if (!went_wrong_ || differs_) return;
    using Place = std::tuple<int32_t, int32_t>;  // section, number of the call in it
    std::map<Place, std::map<std::string, std::vector<int64_t>>> calls;
    std::map<Place, const FlightEntry*> entries;
    for (const auto& log : logs_) {
      for (const auto& entry : log.entries) {
        if (entry.type != Type::call) continue;
        calls[{entry.line, entry.index}][entry.name].push_back(log.rank);
        entries[{entry.line, entry.index}] = &entry;
      }
    }
    for (const auto& [place, names] : calls) {
      if (names.size() < 2) continue;
      const auto most = std::max_element(names.begin(), names.end(), [](auto& one, auto& other) {
        return one.second.size() < other.second.size();
      });
      for (const auto& [name, ranks] : names) {
        if (name == most->first) continue;
        add(c10::str(
            with_hosts(ranks), " called unit '", name, "' as number ", std::get<1>(place) + 1,
            " of a forward ", place_of_entry(*entries[place]), ", where ",
            words_of_ranks(most->second), " called '", most->first, "'"));
      }
      return;
    }
  }

  // ---- ranks for which others wait ----------------------------------------------------------

  void add_missing() {
    const auto found = table_.longest_wait();
    if (!found) return;
    const auto& waiting = log_of(found->waiting.front());
    const double until = found->call->ended != 0 ? found->call->ended : waiting.alive;
    const double waited = until - found->since;
    if (!went_wrong_ && silent_.empty() && waited < kLongStay) return;
    auto text = c10::str(
        words_of_ranks(found->waiting), " waited ", words_of_seconds(waited), " in ",
        words_of_collective(*found->call), " ", place_of(waiting), "; ", with_hosts(found->missing),
        " never called it");
    for (const int64_t rank : found->missing) {
      const bool known = std::find(silent_.begin(), silent_.end(), rank) != silent_.end();
      if (!known) text += c10::str("; rank ", rank, " was ", place_of(log_of(rank)));
    }
    add(text);
  }

  void add_first_error() {
    const FlightLog* first = nullptr;
    for (const auto& log : logs_) {
      if (has_failed(log) && (!first || log.marked < first->marked)) first = &log;
    }
    if (first) {
      add(c10::str(
          "the first error was that of ", with_host(first->rank), " at ",
          words_of_moment(first->marked),
          first->reason == Reason::time_limit ? ", at the operation's time limit: " : ": ",
          words_of_error(first->text)));
      return;
    }
    std::vector<int64_t> stopped;
    int64_t signal = 0;
    for (const auto& log : logs_) {
      if (log.stopped == 0) continue;
      stopped.push_back(log.rank);
      signal = log.stop_signal;
    }
    const auto of_signal = [&] { return strsignal(static_cast<int>(signal)); };
    if (!stopped.empty() && !all_have_ended()) {
      add(c10::str(
          "the launcher, or another process, asked ", words_of_ranks(stopped), " to end (signal ",
          signal, ", ", of_signal(), ")"));
    }
  }

  // ---- health and speed ---------------------------------------------------------------------

  void add_health() {
    const auto& first = logs_.front();
    std::set<std::string> hosts;
    int64_t step = first.step;
    for (const auto& log : logs_) {
      hosts.insert(log.host);
      step = std::min(step, log.step);
    }
    const auto who = c10::str(
        logs_.size() == 1 ? "the rank" : c10::str("all ", logs_.size(), " ranks"), " on ",
        hosts.size(), hosts.size() == 1 ? " host" : " hosts");
    if (all_have_ended()) return add(who + " ended well after step " + std::to_string(step));
    add(c10::str(
        "no rank is missing and none ran something else: ", who,
        step == 0 ? " have begun no step yet" : c10::str(" have begun step ", step)));
  }

  /// By what ranks computed in the steps that all of them have recorded; the others wait for the
  /// slow one.
  void add_slow_rank() {
    constexpr double kSlower = 1.15;
    constexpr size_t kFewest = 3;  // steps
    std::map<int32_t, std::map<int64_t, double>> by_step;
    for (const auto& log : logs_) {
      for (const auto& entry : log.entries) {
        if (entry.type != Type::step) continue;
        by_step[entry.step][log.rank] =
            entry.ended - entry.started - static_cast<double>(entry.bytes) * 1e-9;
      }
    }
    std::map<int64_t, double> sums;
    size_t steps = 0;
    for (const auto& [step, times] : by_step) {
      if (times.size() != logs_.size()) continue;
      ++steps;
      for (const auto& [rank, seconds] : times) sums[rank] += seconds;
    }
    if (steps < kFewest || sums.size() < 2) return;
    std::vector<std::pair<double, int64_t>> sorted;
    for (const auto& [rank, sum] : sums)
      sorted.emplace_back(sum / static_cast<double>(steps), rank);
    std::sort(sorted.begin(), sorted.end());
    const auto [most, slowest] = sorted.back();
    const double others = sorted[(sorted.size() - 2) / 2].first;  // their median
    if (most < others * kSlower || !computes_on_host()) return;
    add(c10::str(
        with_host(slowest), " is slow: in the last ", steps, " steps it computed ",
        format_text("%.1f ms a step, the others %.1f ms", most * 1e3, others * 1e3),
        " and waited for it"));
  }

  /// On a GPU the host waits for nothing, and its times say nothing.
  bool computes_on_host() const { return logs_.front().backend != "nccl"; }

  const std::vector<FlightLog>& logs_;
  CollectiveTable table_;
  std::set<int64_t> known_;
  double end_ = 0;           // the last sign of life of all
  bool went_wrong_ = false;  // a rank has reported an error, or was asked to end
  bool differs_ = false;
  std::vector<int64_t> silent_;
  std::vector<std::string> sentences_;
};

}  // namespace

Blame blame(const std::vector<FlightLog>& logs) {
  return Reading(logs).result();
}

Blame blame_folder(const std::string& folder) {
  return blame(read_flight_logs(folder));
}

}  // namespace sherd
