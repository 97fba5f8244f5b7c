// SPDX-License-Identifier: Apache-2.0
#include "plan/interleavings.h"

#include <algorithm>
#include <random>
#include <unordered_set>

namespace sherd::testing {
namespace {

size_t stream_of(const Issued& issued) {
  return static_cast<size_t>(issued.instruction->stream);
}

/// A change that the machine can make next.
struct Move {
  size_t stream = 0;
  bool starts = false;
};

std::vector<Move> moves_of(const AbstractMachine& machine) {
  std::vector<Move> moves;
  for (size_t stream = 0; stream < kStreams; ++stream) {
    if (machine.running(stream)) {
      moves.push_back({stream, false});
    } else if (machine.can_start(stream)) {
      moves.push_back({stream, true});
    }
  }
  return moves;
}

void make(AbstractMachine& machine, const Move& move) {
  if (move.starts) {
    machine.start(move.stream);
  } else {
    machine.finish(move.stream);
  }
}

/// Runs to the end; `choose` picks the next of several moves.
template <class Choose>
std::optional<Violation> run(const Timeline& timeline, Choose choose) {
  AbstractMachine machine(timeline);
  try {
    for (auto moves = moves_of(machine); !moves.empty(); moves = moves_of(machine)) {
      make(machine, moves.size() == 1 ? moves.front() : choose(moves));
    }
  } catch (const Violation& violation) {
    return violation;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Violation> Interleavings::in_order() const {
  AbstractMachine machine(timeline_);
  try {
    size_t issued = 0;
    const auto sections = static_cast<int32_t>(timeline_.sequence().size());
    for (int32_t section = 0; section < sections; ++section) {
      for (; issued < timeline_.issued().size() && timeline_.issued()[issued].section == section;
           ++issued) {
        const auto stream = stream_of(timeline_.issued()[issued]);
        machine.start(stream);
        machine.finish(stream);
      }
      machine.end_section(section);
    }
  } catch (const Violation& violation) {
    return violation;
  }
  return std::nullopt;
}

std::optional<Violation> Interleavings::extreme() const {
  std::array<size_t, kStreams> rank{0, 1, 2, 3};  // the lowest goes first
  do {
    for (const bool overlap : {false, true}) {
      const auto choose = [&](const std::vector<Move>& moves) {
        return *std::min_element(moves.begin(), moves.end(), [&](const Move& a, const Move& b) {
          if (a.starts != b.starts) return a.starts == overlap;
          return rank[a.stream] < rank[b.stream];
        });
      };
      if (auto violation = run(timeline_, choose)) return violation;
    }
  } while (std::next_permutation(rank.begin(), rank.end()));
  return std::nullopt;
}

std::optional<Violation> Interleavings::one_slow() const {
  AbstractMachine before(timeline_);
  const auto& issued = timeline_.issued();
  try {
    for (size_t slow = 0; slow < issued.size(); ++slow) {
      const auto stream = stream_of(issued[slow]);
      AbstractMachine machine = before;
      machine.start(stream);
      std::array<bool, kStreams> stuck{};
      stuck[stream] = true;
      for (size_t i = slow + 1; i < issued.size(); ++i) {
        const auto other = stream_of(issued[i]);
        stuck[other] = stuck[other] || !machine.can_start(other);
        if (stuck[other]) {
          if (std::count(stuck.begin(), stuck.end(), true) == kStreams) break;
          continue;
        }
        machine.start(other);
        machine.finish(other);
      }
      before.start(stream);
      before.finish(stream);
    }
  } catch (const Violation& violation) {
    return violation;
  }
  return std::nullopt;
}

std::optional<Violation> Interleavings::random(int runs, uint64_t seed) const {
  std::mt19937_64 source(seed);
  for (int i = 0; i < runs; ++i) {
    // By stream, to start and to finish: from sluggish to hasty.
    std::array<std::array<double, 2>, kStreams> haste{};
    for (auto& both : haste) {
      for (auto& one : both) one = std::array{0.01, 1.0, 100.0}[source() % 3];
    }
    const auto choose = [&](const std::vector<Move>& moves) {
      std::array<double, kStreams> weights{};
      for (size_t m = 0; m < moves.size(); ++m)
        weights[m] = haste[moves[m].stream][moves[m].starts];
      std::discrete_distribution<size_t> pick(
          weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(moves.size()));
      return moves[pick(source)];
    };
    if (auto violation = run(timeline_, choose)) return violation;
  }
  return std::nullopt;
}

Interleavings::Search Interleavings::all(int64_t most_states) const {
  Search search;
  std::unordered_set<uint64_t> seen;
  std::vector<AbstractMachine> open{AbstractMachine(timeline_)};
  try {
    while (!open.empty()) {
      const AbstractMachine machine = std::move(open.back());
      open.pop_back();
      if (!seen.insert(machine.hash()).second) continue;
      if (++search.states > most_states) return search;
      for (const auto& move : moves_of(machine)) {
        make(open.emplace_back(machine), move);
      }
    }
  } catch (const Violation& violation) {
    search.violation = violation;
    return search;
  }
  search.complete = true;
  return search;
}

std::optional<Violation> find_violation(const Program& program, int random_runs, uint64_t seed) {
  for (const auto& sequence : typical_sequences(program)) {
    const Interleavings interleavings(program, sequence);
    if (auto violation = interleavings.in_order()) return violation;
    if (auto violation = interleavings.one_slow()) return violation;
    if (auto violation = interleavings.extreme()) return violation;
    if (auto violation = interleavings.random(random_runs, seed)) return violation;
  }
  return std::nullopt;
}

}  // namespace sherd::testing
