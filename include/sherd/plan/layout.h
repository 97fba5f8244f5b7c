// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// The smallest piece that a parameter may be cut into: shards begin only on multiples of it,
/// counted from the parameter's first element.
class SHERD_API Granule {
 public:
  /// The parameter may be cut between any two elements.
  static Granule element() { return {Kind::block, 1}; }
  /// It may be cut between groups of `count` rows.
  static Granule rows(int64_t count = 1) { return {Kind::rows, count}; }
  /// It may be cut between blocks of `elements` elements.
  static Granule block(int64_t elements) { return {Kind::block, elements}; }
  /// It is never cut.
  static Granule whole() { return {Kind::whole, 1}; }

  bool is_whole() const { return kind_ == Kind::whole; }
  /// Returns the granule in elements of a tensor of this shape, at least 1. A row is all dims but
  /// the first. Throws std::invalid_argument if the count is below 1 or the product overflows 64
  /// bits.
  int64_t elements(std::span<const int64_t> shape) const;

 private:
  enum class Kind : uint8_t { rows, block, whole };
  Granule(Kind kind, int64_t count) : kind_(kind), count_(count) {}
  Kind kind_;
  int64_t count_;
};

/// A parameter to lay out.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  Granule granule = Granule::element();
};

/// Part `index` of `count` equal parts of a layout's buffer. `count` must divide the number of
/// shards: a part is one shard, several neighbouring shards (the inner part of a two-axis
/// placement) or, as {0, 1}, the whole buffer.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
};

/// A range of one parameter's elements, and where it is in the buffer of the part that holds it.
struct Piece {
  int64_t parameter = 0;  ///< index of the parameter
  int64_t begin = 0;      ///< first element, counted in the parameter
  int64_t length = 0;     ///< number of elements
  int64_t offset = 0;     ///< offset of the first element in the part's buffer
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// The position of one element: in the buffer of part `index`, at `offset`.
struct Location {
  int64_t index = 0;
  int64_t offset = 0;
};

/// A sequence of parameters that is cut into equal shards on its own. Segments follow one another,
/// in the full buffer and in each part's buffer.
struct Segment {
  int64_t offset = 0;               ///< first element of the segment in the full buffer
  int64_t shard_size = 0;           ///< elements of one shard
  int64_t granule = 1;              ///< largest granule of its parameters, in elements
  std::vector<int64_t> parameters;  ///< indices of its parameters, by ascending offset
};

/// Options of Layout::build.
struct LayoutOptions {
  int64_t shards = 1;  ///< number of shards
  /// Bytes of the smallest element in which the group stores any role (fp32 main weight and bf16
  /// model weight: 2), so that every parameter starts on a multiple of 16 bytes in all of them. One
  /// of 1, 2, 4, 8 and 16.
  int64_t element_size = 4;
  /// Every parameter and every shard starts on a multiple of this many elements, too: a block of
  /// elements that share a scale. Must be a multiple of 16 bytes of the smallest element; 0: none.
  int64_t block = 0;
};

/// The positions of a group's parameters in one flat buffer, and the cuts of that buffer into equal
/// shards. A pure function of shapes, granules, element size and number of shards, the same on
/// every rank. Note [How a segment is packed] in segment_packer.h has the bounds on padding.
class SHERD_API Layout {
 public:
  /// Computes a layout. Throws std::invalid_argument, naming the parameter or the option, for what
  /// can't be laid out: negative dims, more than 2^62 elements, no shards, a granule below 1.
  static Layout build(std::vector<ParameterSpec> parameters, const LayoutOptions& options);

  int64_t shards() const { return shards_; }  ///< number of shards
  /// Returns the alignment in elements: all parameters and shards start on a multiple of it.
  int64_t alignment() const { return alignment_; }
  /// Returns the elements of the full buffer, padding included.
  int64_t full_size() const { return shard_size_ * shards_; }
  /// Returns the elements of one of `count` parts. Throws unless `count` divides the shards.
  int64_t part_size(int64_t count) const { return shard_size_ * shards_per_part(count); }
  /// Returns the elements of the full buffer that belong to no parameter.
  int64_t padding() const;

  std::span<const ParameterSpec> parameters() const { return parameters_; }
  std::span<const Segment> segments() const { return segments_; }
  /// Returns the number of elements of a parameter.
  int64_t numel(int64_t parameter) const { return entry(parameter).numel; }
  /// Returns the offset of a parameter's first element in the full buffer.
  int64_t offset(int64_t parameter) const { return entry(parameter).offset; }

  /// Returns the pieces that a part holds, by ascending offset in its buffer. None is empty.
  std::vector<Piece> held_by(Part part) const;
  /// Returns the piece of one parameter that a part holds; its length is 0 if the part holds none.
  Piece held_by(Part part, int64_t parameter) const;
  /// Returns which of `count` parts holds an element, and where.
  Location locate(int64_t parameter, int64_t element, int64_t count) const;

  /// Returns a table of segments and parameters.
  std::string to_text() const;

 private:
  struct Entry {
    int64_t numel = 0;
    int64_t segment = 0;
    int64_t offset = 0;
  };
  const Entry& entry(int64_t parameter) const;
  int64_t shards_per_part(int64_t count) const;
  Piece clip(int64_t parameter, Part part) const;

  std::vector<ParameterSpec> parameters_;
  std::vector<Entry> entries_;
  std::vector<Segment> segments_;
  int64_t shards_ = 1;
  int64_t alignment_ = 1;
  int64_t shard_size_ = 0;
};

}  // namespace sherd
