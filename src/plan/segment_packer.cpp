// SPDX-License-Identifier: Apache-2.0
#include "plan/segment_packer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <queue>
#include <utility>

namespace sherd {
namespace {

/// What became of placing items into shards of a given size.
struct Attempt {
  int64_t end = 0;             // first free element behind the last item
  int64_t wants_multiple = 0;  // a shard size that some item asks for; 0 if none
};

/// The offset at or after `at` where an item may start, given shards of `shard_size`. Sets
/// `attempt.wants_multiple` if there is none for this shard size.
int64_t fit(const PackItem& item, int64_t at, int64_t shard_size, int64_t step, Attempt& attempt) {
  const auto next_cut = [&] { return (at / shard_size + 1) * shard_size; };
  // At most two rounds: the first may push the item to the cut itself, the second to a whole number
  // of granules before the next one.
  for (int64_t cut = next_cut(); at + item.numel > cut; cut = next_cut()) {
    if ((cut - at) % item.granule == 0) {
      const bool cut_again = at + item.numel > cut + shard_size;
      if (cut_again && shard_size % item.granule != 0) attempt.wants_multiple = step;
      return at;
    }
    if (shard_size < step && item.numel > shard_size) {
      attempt.wants_multiple = step;
      return at;
    }
    at = cut - (cut - at) / step * step;
  }
  return at;
}

/// Places all items one after another; writes their offsets.
Attempt place(PackedSegment& segment, int64_t alignment) {
  Attempt attempt;
  for (size_t i = 0; i < segment.items.size(); ++i) {
    const auto& item = segment.items[i];
    int64_t at = attempt.end;
    if (item.numel > 0) {
      at = fit(item, at, segment.shard_size, std::lcm(item.granule, alignment), attempt);
      if (attempt.wants_multiple != 0) return attempt;
    }
    segment.offsets[i] = at;
    attempt.end = at + round_up(item.numel, alignment);
  }
  return attempt;
}

int64_t aligned_total(std::span<const PackItem> items, int64_t alignment) {
  int64_t total = 0;
  for (const auto& item : items) total += round_up(item.numel, alignment);
  return total;
}

/// Packs items of one granule; halves the list where one segment can't keep the bound.
std::vector<PackedSegment> pack_class(
    std::vector<PackItem> items, int64_t shards, int64_t alignment) {
  if (auto segment = pack_together(items, shards, alignment)) return {std::move(*segment)};
  const auto half = items.begin() + std::ssize(items) / 2;
  auto segments = pack_class({items.begin(), half}, shards, alignment);
  for (auto& segment : pack_class({half, items.end()}, shards, alignment)) {
    segments.push_back(std::move(segment));
  }
  return segments;
}

int64_t shard_total(std::span<const PackedSegment> segments) {
  int64_t total = 0;
  for (const auto& segment : segments) total += segment.shard_size;
  return total;
}

}  // namespace

std::optional<PackedSegment> pack_together(
    std::vector<PackItem> items, int64_t shards, int64_t alignment) {
  const int64_t step = items.empty() ? alignment : std::lcm(items.front().granule, alignment);
  const int64_t total = aligned_total(items, alignment);
  const int64_t least = round_up((total + shards - 1) / shards, alignment);
  const int64_t most = total / shards + step;
  PackedSegment segment{least, std::move(items), {}};
  segment.offsets.resize(segment.items.size());
  if (total == 0) return segment;

  constexpr int kTries = 32;  // then only the next multiple of the step, which suits every granule
  for (int tries = 0; segment.shard_size <= most; ++tries) {
    if (tries == kTries) segment.shard_size = round_up(segment.shard_size, step);
    if (segment.shard_size > most) break;
    const auto attempt = place(segment, alignment);
    const int64_t room = segment.shard_size * shards;
    if (attempt.wants_multiple == 0 && attempt.end <= room) return segment;
    if (tries >= kTries) break;
    if (attempt.wants_multiple != 0 && segment.shard_size % attempt.wants_multiple != 0) {
      segment.shard_size = round_up(segment.shard_size, attempt.wants_multiple);
    } else {
      const int64_t missing = std::max<int64_t>(attempt.end - room, 1);
      segment.shard_size += round_up((missing + shards - 1) / shards, alignment);
    }
  }
  return std::nullopt;
}

std::vector<PackedSegment> pack_cut(
    std::vector<PackItem> items, int64_t shards, int64_t alignment) {
  std::map<int64_t, std::vector<PackItem>, std::greater<>> classes;  // largest granule first
  for (const auto& item : items) classes[item.granule].push_back(item);

  std::vector<PackedSegment> segments;
  for (auto& [granule, members] : classes) {
    auto apart = pack_class(members, shards, alignment);
    const int64_t apart_size = shard_total(apart);
    int64_t best_size = apart_size;  // what the shard grows by
    std::optional<PackedSegment> best;
    PackedSegment* joined = nullptr;
    for (auto& segment : segments) {
      if (segment.items.back().granule % granule != 0) continue;
      auto together = segment.items;
      together.insert(together.end(), members.begin(), members.end());
      auto packed = pack_together(std::move(together), shards, alignment);
      if (packed && packed->shard_size - segment.shard_size <= best_size) {
        best_size = packed->shard_size - segment.shard_size;
        best = std::move(packed);
        joined = &segment;
      }
    }
    if (best) {
      *joined = std::move(*best);
    } else {
      std::move(apart.begin(), apart.end(), std::back_inserter(segments));
    }
  }
  return segments;
}

PackedSegment pack_whole(std::vector<PackItem> items, int64_t shards, int64_t alignment) {
  std::stable_sort(
      items.begin(), items.end(), [](const auto& a, const auto& b) { return a.numel > b.numel; });
  using Load = std::pair<int64_t, int64_t>;  // elements, shard
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  // Those beyond the number of items would stay empty.
  const int64_t used = std::min(shards, std::ssize(items));
  for (int64_t shard = 0; shard < used; ++shard) loads.emplace(0, shard);

  std::vector<Load> places;
  int64_t fullest = 0;
  for (const auto& item : items) {
    auto [load, shard] = loads.top();
    loads.pop();
    places.emplace_back(load, shard);
    load += round_up(item.numel, alignment);
    fullest = std::max(fullest, load);
    loads.emplace(load, shard);
  }

  std::vector<std::pair<int64_t, PackItem>> by_offset;
  for (size_t i = 0; i < items.size(); ++i) {
    by_offset.emplace_back(places[i].second * fullest + places[i].first, items[i]);
  }
  // An empty item may stand where another starts: it comes first, so that ends rise as offsets do.
  std::stable_sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.numel) < std::pair(b.first, b.second.numel);
  });
  PackedSegment segment{fullest, {}, {}};
  for (const auto& [offset, item] : by_offset) {
    segment.offsets.push_back(offset);
    segment.items.push_back(item);
  }
  return segment;
}

}  // namespace sherd
