// SPDX-License-Identifier: Apache-2.0
#include "sherd/plan/layout.h"

#include <algorithm>
#include <stdexcept>

#include "plan/segment_packer.h"
#include "plan/text.h"

namespace sherd {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 62;

template <class... Args>
void require(bool condition, const Args&... args) {
  if (!condition) throw std::invalid_argument(text("[plan.layout] ", args...));
}

/// The product of dims; -1 when it passes kMostElements.
int64_t product(std::span<const int64_t> dims) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  int64_t result = 1;
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(result, dim, &result) || result > kMostElements) return -1;
  }
  return result;
}

void check(const ParameterSpec& parameter) {
  for (const int64_t dim : parameter.shape) {
    require(dim >= 0, "parameter '", parameter.name, "' has the negative dim ", dim);
  }
  require(product(parameter.shape) >= 0, "parameter '", parameter.name, "' has over 2^62 elements");
}

int64_t granule_of(const ParameterSpec& parameter) {
  try {
    return parameter.granule.elements(parameter.shape);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(text(error.what(), " (parameter '", parameter.name, "')"));
  }
}

/// Elements that a layout may need at the most; refuses what would not fit in 63 bits.
void check_total(std::span<const PackItem> items, int64_t shards, int64_t alignment) {
  double total = 0;  // an estimate from above is enough
  for (const auto& item : items) {
    const double padding = static_cast<double>(shards) * static_cast<double>(alignment) *
                           (static_cast<double>(item.granule) + 1);
    total += static_cast<double>(item.numel) + padding;
  }
  require(
      total < static_cast<double>(kMostElements), "the group does not fit in 2^62 elements on ",
      shards, " shards");
}

}  // namespace

int64_t Granule::elements(std::span<const int64_t> shape) const {
  if (kind_ == Kind::whole) return std::max<int64_t>(product(shape), 1);
  const int64_t unit = kind_ == Kind::rows && shape.size() > 1 ? product(shape.subspan(1)) : 1;
  int64_t result = 0;
  require(
      unit >= 0 && !__builtin_mul_overflow(count_, std::max<int64_t>(unit, 1), &result),
      "a granule of ", count_, kind_ == Kind::rows ? " rows" : " elements",
      " is over 2^62 elements");
  require(result >= 1, "a granule has at least one element, not ", result);
  return result;
}

Layout Layout::build(std::vector<ParameterSpec> parameters, const LayoutOptions& options) {
  const auto size = options.element_size;
  require(options.shards >= 1, "shards is ", options.shards, "; it must be at least 1");
  require(
      size == 1 || size == 2 || size == 4 || size == 8 || size == 16, "element_size is ", size,
      "; it must be 1, 2, 4, 8 or 16 bytes");

  Layout layout;
  layout.shards_ = options.shards;
  layout.alignment_ = options.block > 0 ? options.block : 16 / size;
  require(
      layout.alignment_ % (16 / size) == 0, "block is ", options.block,
      " elements; it must be a multiple of ", 16 / size);
  layout.parameters_ = std::move(parameters);

  std::vector<PackItem> cut;
  std::vector<PackItem> whole;
  for (const auto& parameter : layout.parameters_) {
    check(parameter);
    const int64_t index = std::ssize(layout.entries_);
    const int64_t numel = product(parameter.shape);
    // One that is no larger than its granule is never cut, so a smaller granule says the same; a
    // scalar goes with any.
    const int64_t asked = granule_of(parameter);
    const int64_t granule = numel <= 1 ? 1 : std::min(asked, round_up(numel, layout.alignment_));
    layout.entries_.push_back({numel, 0, 0});
    (parameter.granule.is_whole() ? whole : cut).push_back({index, numel, granule});
  }
  check_total(cut, layout.shards_, layout.alignment_);
  check_total(whole, layout.shards_, layout.alignment_);

  auto packed = pack_cut(std::move(cut), layout.shards_, layout.alignment_);
  if (!whole.empty()) {
    packed.push_back(pack_whole(std::move(whole), layout.shards_, layout.alignment_));
  }
  for (const auto& source : packed) {
    Segment segment{layout.full_size(), source.shard_size, 1, {}};
    for (size_t i = 0; i < source.items.size(); ++i) {
      const auto& item = source.items[i];
      segment.granule = std::max(segment.granule, item.granule);
      segment.parameters.push_back(item.parameter);
      auto& entry = layout.entries_[static_cast<size_t>(item.parameter)];
      entry.segment = std::ssize(layout.segments_);
      entry.offset = segment.offset + source.offsets[i];
    }
    layout.shard_size_ += source.shard_size;
    layout.segments_.push_back(std::move(segment));
  }
  return layout;
}

int64_t Layout::padding() const {
  int64_t used = 0;
  for (const auto& entry : entries_) used += entry.numel;
  return full_size() - used;
}

const Layout::Entry& Layout::entry(int64_t parameter) const {
  require(
      parameter >= 0 && parameter < std::ssize(entries_), "there is no parameter ", parameter,
      " among ", entries_.size());
  return entries_[static_cast<size_t>(parameter)];
}

int64_t Layout::shards_per_part(int64_t count) const {
  require(
      count >= 1 && shards_ % count == 0, count, " parts don't divide ", shards_, " shards evenly");
  return shards_ / count;
}

Piece Layout::clip(int64_t parameter, Part part) const {
  const auto& entry = entries_[static_cast<size_t>(parameter)];
  const auto& segment = segments_[static_cast<size_t>(entry.segment)];
  const int64_t per_part = shards_ / part.count;
  const int64_t width = segment.shard_size * per_part;
  const int64_t first = segment.offset + part.index * width;
  const int64_t begin = std::max(entry.offset, first);
  const int64_t end = std::min(entry.offset + entry.numel, first + width);
  if (begin >= end) return {parameter, 0, 0, 0};
  // Segments before this one take the same share of the part's buffer as of the full buffer.
  const int64_t before = segment.offset / shards_ * per_part;
  return {parameter, begin - entry.offset, end - begin, before + begin - first};
}

std::vector<Piece> Layout::held_by(Part part) const {
  const int64_t per_part = shards_per_part(part.count);
  require(
      part.index >= 0 && part.index < part.count, "part ", part.index, " of ", part.count,
      " does not exist");
  std::vector<Piece> pieces;
  for (const auto& segment : segments_) {
    const int64_t width = segment.shard_size * per_part;
    const int64_t first = segment.offset + part.index * width;
    const auto end_of = [&](int64_t parameter) {
      const auto& entry = entries_[static_cast<size_t>(parameter)];
      return entry.offset + entry.numel;
    };
    auto next = std::partition_point(
        segment.parameters.begin(), segment.parameters.end(),
        [&](int64_t parameter) { return end_of(parameter) <= first; });
    for (; next != segment.parameters.end(); ++next) {
      if (entries_[static_cast<size_t>(*next)].offset >= first + width) break;
      if (const auto piece = clip(*next, part); piece.length > 0) pieces.push_back(piece);
    }
  }
  return pieces;
}

Piece Layout::held_by(Part part, int64_t parameter) const {
  shards_per_part(part.count);
  require(
      part.index >= 0 && part.index < part.count, "part ", part.index, " of ", part.count,
      " does not exist");
  entry(parameter);
  return clip(parameter, part);
}

Location Layout::locate(int64_t parameter, int64_t element, int64_t count) const {
  const auto& at = entry(parameter);
  require(
      element >= 0 && element < at.numel, "parameter '",
      parameters_[static_cast<size_t>(parameter)].name, "' has no element ", element);
  const auto& segment = segments_[static_cast<size_t>(at.segment)];
  const int64_t per_part = shards_per_part(count);
  const int64_t width = segment.shard_size * per_part;
  const int64_t inside = at.offset - segment.offset + element;
  return {inside / width, segment.offset / shards_ * per_part + inside % width};
}

std::string Layout::to_text() const {
  std::ostringstream out;
  out << shards_ << " shards of " << shard_size_ << " elements, " << padding() << " padding\n";
  for (const auto& segment : segments_) {
    out << "segment at " << segment.offset << ", shards of " << segment.shard_size << ", granule "
        << segment.granule << '\n';
    for (const int64_t parameter : segment.parameters) {
      const auto& spec = parameters_[static_cast<size_t>(parameter)];
      out << "  " << offset(parameter) << "  " << spec.name << " (";
      for (size_t i = 0; i < spec.shape.size(); ++i) out << (i ? "," : "") << spec.shape[i];
      out << ")\n";
    }
  }
  return out.str();
}

}  // namespace sherd
