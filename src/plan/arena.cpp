// SPDX-License-Identifier: Apache-2.0
#include "plan/arena.h"

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "plan/text.h"
#include "sherd/plan/program.h"

// Note [How the arena is packed]
// Buffers are placed one by one, each at the lowest offset where it meets no rival, a buffer that
// is needed at the same time. Some order gives the fewest bytes: take the best offsets there are
// and place the buffers anew in the order of these offsets, and none ends up higher than it was. So
// only orders are searched: all of them for a few buffers; for more, some plausible ones, and then
// small changes to these. The search ends at the bound or after a number of steps, not after a
// time, since all ranks must find the same.

namespace sherd {
namespace {

constexpr size_t kFew = 8;  // buffers, for which all orders are tried
// For more, each plausible order is changed in so many rounds, so many times, and so many rivals
// are looked at meanwhile, which is what limits long programs.
constexpr int64_t kRounds = 3;
constexpr int64_t kTries = 250;
constexpr int64_t kWork = 200'000;

using Buffers = std::vector<int32_t>;

size_t at(int32_t number) {
  return static_cast<size_t>(number);
}

template <class... Args>
void check(bool condition, const Args&... args) {
  if (!condition) throw std::invalid_argument(text("[plan.arena] ", args...));
}

struct Problem {
  std::vector<int64_t> bytes;     // by buffer, as the following
  std::vector<int64_t> pinned;    // offset; kNone: free
  std::vector<Buffers> rivals;    // those needed at the same time
  std::vector<int64_t> duration;  // instructions of all its lifetimes
  Buffers buffers;                // that need a place, as they first appear
  int64_t bound = 0;
  int64_t floor = 0;  // the bound, or more if the pinned offsets need it
};

/// Finds the buffers, their rivals and the bound: the most is live where some lifetime begins.
void sweep(std::vector<Lifetime> lifetimes, Problem& problem) {
  std::sort(lifetimes.begin(), lifetimes.end(), [](const Lifetime& a, const Lifetime& b) {
    return std::tie(a.section, a.begin, a.buffer) < std::tie(b.section, b.begin, b.buffer);
  });
  const size_t count = problem.bytes.size();
  std::vector<bool> known(count * count);  // sections mostly repeat each other's rivals
  std::vector<Lifetime> live;
  int64_t live_bytes = 0;
  for (const auto& next : lifetimes) {
    const size_t buffer = at(next.buffer);
    if (problem.bytes[buffer] == 0) continue;
    if (problem.duration[buffer] == 0) problem.buffers.push_back(next.buffer);
    problem.duration[buffer] += next.end - next.begin + 1;
    std::erase_if(live, [&](const Lifetime& each) {
      if (each.section == next.section && each.end >= next.begin) return false;
      live_bytes -= problem.bytes[at(each.buffer)];
      return true;
    });
    const auto again = std::find_if(
        live.begin(), live.end(), [&](const Lifetime& each) { return each.buffer == next.buffer; });
    if (again != live.end()) {
      again->end = std::max(again->end, next.end);
      continue;
    }
    for (const auto& other : live) {
      const size_t rival = at(other.buffer);
      if (known[buffer * count + rival]) continue;
      known[buffer * count + rival] = known[rival * count + buffer] = true;
      problem.rivals[buffer].push_back(other.buffer);
      problem.rivals[rival].push_back(next.buffer);
    }
    live.push_back(next);
    live_bytes += problem.bytes[buffer];
    problem.bound = std::max(problem.bound, live_bytes);
  }
}

/// Buffers placed one after another, each at the lowest offset that those before it leave.
class Packing {
 public:
  explicit Packing(const Problem& problem)
      : problem_(&problem), offsets_(problem.bytes.size(), kNone) {
    for (const int32_t buffer : problem.buffers) offsets_[at(buffer)] = problem.pinned[at(buffer)];
  }

  const std::vector<int64_t>& offsets() const { return offsets_; }
  const Buffers& order() const { return order_; }  // without those that are pinned
  bool has(int32_t buffer) const { return offsets_[at(buffer)] != kNone; }
  int64_t top(int32_t buffer) const { return offsets_[at(buffer)] + problem_->bytes[at(buffer)]; }

  int64_t height() const {
    int64_t most = 0;
    for (const int32_t buffer : problem_->buffers) {
      if (has(buffer)) most = std::max(most, top(buffer));
    }
    return most;
  }

  int64_t lowest_fit(int32_t buffer) {
    taken_.clear();
    for (const int32_t rival : problem_->rivals[at(buffer)]) {
      if (has(rival)) taken_.emplace_back(offsets_[at(rival)], top(rival));
    }
    std::sort(taken_.begin(), taken_.end());
    int64_t lowest = 0;
    for (const auto& [begin, end] : taken_) {
      if (begin - lowest >= problem_->bytes[at(buffer)]) break;
      lowest = std::max(lowest, end);
    }
    return lowest;
  }

  void add(int32_t buffer) {
    offsets_[at(buffer)] = lowest_fit(buffer);
    order_.push_back(buffer);
  }

  void remove_last() {
    offsets_[at(order_.back())] = kNone;
    order_.pop_back();
  }

  /// Places that differ in offset or size.
  size_t places() const {
    std::set<std::pair<int64_t, int64_t>> all;
    for (const int32_t buffer : order_) all.emplace(offsets_[at(buffer)], top(buffer));
    return all.size();
  }

 private:
  const Problem* problem_;
  std::vector<int64_t> offsets_;  // by buffer; kNone: not placed
  Buffers order_;
  std::vector<std::pair<int64_t, int64_t>> taken_;  // scratch
};

/// Tries all orders, depth first.
class Exhaustive {
 public:
  Exhaustive(const Problem& problem, const Packing& best)
      : problem_(problem), now_(problem), best_(best), height_(best.height()) {}

  Packing run() {
    extend(0, kNone);
    return best_;
  }

 private:
  /// Offsets rise along the order, and numbers where offsets are equal: other orders give nothing
  /// that these don't, since placing anew in the order of offsets doesn't lift anything.
  void extend(int64_t lowest, int32_t last) {
    std::vector<std::pair<int64_t, int32_t>> next;
    bool complete = true;
    for (const int32_t buffer : problem_.buffers) {
      if (now_.has(buffer)) continue;
      complete = false;
      const int64_t offset = now_.lowest_fit(buffer);
      if (offset + problem_.bytes[at(buffer)] >= height_) return;  // it won't sink later
      if (std::pair(offset, buffer) > std::pair(lowest, last)) next.emplace_back(offset, buffer);
    }
    if (complete) {
      best_ = now_;
      height_ = best_.height();
    }
    std::sort(next.begin(), next.end());
    for (const auto& [offset, buffer] : next) {
      if (height_ == problem_.floor) return;
      now_.add(buffer);
      extend(offset, buffer);
      now_.remove_last();
    }
  }

  const Problem& problem_;
  Packing now_;
  Packing best_;
  int64_t height_;  // of the best
};

/// Changes orders, one move at a time, never so that more buffers reach the height to beat.
class Search {
 public:
  Search(const Problem& problem, const Packing& best)
      : problem_(problem), best_(best), now_(best), next_(best), height_(best.height()) {}

  const Packing& best() const { return best_; }

  void run(const Packing& start) {
    now_ = start;
    find_high();
    budget_ += kWork;
    for (int64_t i = 0; i < kTries && budget_ > 0 && height_ > problem_.floor; ++i) try_move();
  }

 private:
  using Index = Buffers::difference_type;

  void find_high() {
    high_.clear();
    for (const int32_t buffer : now_.order()) {
      if (now_.top(buffer) >= height_) high_.push_back(buffer);
    }
  }

  /// std::mt19937_64 gives the same numbers everywhere, the standard's distributions don't.
  int32_t pick(const Buffers& buffers) {
    return buffers[static_cast<size_t>(random_() % buffers.size())];
  }

  /// A buffer that stands too high, or one that competes for the place below it, takes the turn of
  /// a rival.
  void try_move() {
    const int32_t high = pick(high_);
    const int32_t rival = pick(problem_.rivals[at(high)]);
    const int32_t moved = random_() % 2 == 0 ? high : pick(problem_.rivals[at(rival)]);
    Buffers order = now_.order();
    const Index from = std::find(order.begin(), order.end(), moved) - order.begin();
    const Index to = std::find(order.begin(), order.end(), rival) - order.begin();
    if (std::max(from, to) == std::ssize(order)) return;  // a pinned one has no turn
    order.erase(order.begin() + from);
    order.insert(order.begin() + to, moved);
    place(order, std::min(from, to));
  }

  /// Places anew from the first change on, and accepts the outcome unless it is worse.
  void place(const Buffers& order, Index unchanged) {
    next_ = now_;
    while (std::ssize(next_.order()) > unchanged) next_.remove_last();
    size_t high = 0;
    for (const int32_t buffer : order) {
      if (!next_.has(buffer)) {
        next_.add(buffer);
        budget_ -= 1 + std::ssize(problem_.rivals[at(buffer)]);
      }
      if (next_.top(buffer) >= height_ && ++high > high_.size()) return;
    }
    std::swap(now_, next_);
    if (high == 0) {
      best_ = now_;
      height_ = best_.height();
    }
    find_high();
  }

  const Problem& problem_;
  Packing best_;
  Packing now_;
  Packing next_;
  int64_t height_;  // of the best: to beat
  Buffers high_;    // those that reach it now
  std::mt19937_64 random_;
  int64_t budget_ = 0;  // of work
};

/// Orders that often do well: by appearance (chains of equal layers), and what is hard to place
/// first.
std::vector<Buffers> plausible_orders(const Problem& problem) {
  Buffers free = problem.buffers;
  std::erase_if(free, [&](int32_t buffer) { return problem.pinned[at(buffer)] != kNone; });
  std::vector<int64_t> around = problem.bytes;
  std::vector<int64_t> area = problem.bytes;
  for (const int32_t buffer : free) {
    for (const int32_t rival : problem.rivals[at(buffer)]) {
      around[at(buffer)] += problem.bytes[at(rival)];
    }
    area[at(buffer)] *= problem.duration[at(buffer)];
  }
  std::vector<Buffers> orders{free};
  for (const auto& key : {std::as_const(around), problem.bytes, std::as_const(area)}) {
    std::stable_sort(
        free.begin(), free.end(), [&](int32_t a, int32_t b) { return key[at(a)] > key[at(b)]; });
    orders.push_back(free);
  }
  return orders;
}

Packing pack(const Problem& problem) {
  std::vector<Packing> packings;
  for (const auto& order : plausible_orders(problem)) {
    auto& packing = packings.emplace_back(problem);
    for (const int32_t buffer : order) packing.add(buffer);
    if (packing.height() == problem.floor) return packing;
  }
  const auto& best =
      *std::min_element(packings.begin(), packings.end(), [](const Packing& a, const Packing& b) {
        return std::pair(a.height(), a.places()) < std::pair(b.height(), b.places());
      });
  if (best.order().size() <= kFew) return Exhaustive(problem, best).run();
  Search search(problem, best);
  for (int64_t round = 0; round < kRounds; ++round) {
    for (const auto& packing : packings) search.run(packing);
  }
  return search.best();
}

/// Raises the floor to what the pinned offsets need.
void check_pinned(Problem& problem) {
  for (const int32_t buffer : problem.buffers) {
    const int64_t begin = problem.pinned[at(buffer)];
    if (begin == kNone) continue;
    const int64_t end = begin + problem.bytes[at(buffer)];
    problem.floor = std::max(problem.floor, end);
    for (const int32_t rival : problem.rivals[at(buffer)]) {
      const int64_t other = problem.pinned[at(rival)];
      if (other == kNone) continue;
      if (end <= other || other + problem.bytes[at(rival)] <= begin) continue;
      throw PinnedConflict(
          text(
              "[plan.arena] buffers ", buffer, " and ", rival,
              " are needed at the same time, but their pinned offsets ", begin, " and ", other,
              " let them share bytes"),
          buffer, rival);
    }
  }
}

}  // namespace

ArenaPlan plan_arena(
    const std::vector<int64_t>& bytes,
    const std::vector<Lifetime>& lifetimes,
    const std::vector<int64_t>& pinned) {
  const size_t count = bytes.size();
  Problem problem{
      .bytes = bytes,
      .pinned = pinned.empty() ? std::vector<int64_t>(count, kNone) : pinned,
      .rivals = std::vector<Buffers>(count),
      .duration = std::vector<int64_t>(count),
      .buffers = {}};
  check(problem.pinned.size() == count, pinned.size(), " pinned offsets for ", count, " buffers");
  for (size_t i = 0; i < count; ++i) {
    check(bytes[i] >= 0, "buffer ", i, " has ", bytes[i], " bytes");
    check(problem.pinned[i] >= kNone, "buffer ", i, " has the pinned offset ", problem.pinned[i]);
  }
  for (const auto& [buffer, section, begin, end] : lifetimes) {
    check(buffer >= 0 && at(buffer) < count, "a lifetime of buffer ", buffer, " of ", count);
    check(begin <= end, "buffer ", buffer, " lives from ", begin, " to ", end, " in ", section);
  }
  sweep(lifetimes, problem);
  problem.floor = problem.bound;
  check_pinned(problem);
  const Packing packing = pack(problem);
  return {packing.offsets(), packing.height(), problem.bound};
}

}  // namespace sherd
