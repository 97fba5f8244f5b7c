// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// Where a parameter may be cut: only on multiples of its granule, counted from its first element.
class SHERD_API Granule {
 public:
  static Granule element() { return {Kind::block, 1}; }
  static Granule rows(int64_t count = 1) { return {Kind::rows, count}; }
  static Granule block(int64_t elements) { return {Kind::block, elements}; }
  static Granule whole() { return {Kind::whole, 1}; }

  bool is_whole() const { return kind_ == Kind::whole; }
  /// The granule in elements of a tensor of this shape, at least 1. A row is all dims but the
  /// first.
  int64_t elements(std::span<const int64_t> shape) const;

 private:
  enum class Kind : uint8_t { rows, block, whole };
  Granule(Kind kind, int64_t count) : kind_(kind), count_(count) {}
  Kind kind_;
  int64_t count_;
};

/// A parameter as the layout sees it.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  Granule granule = Granule::element();
};

/// Part `index` of `count` equal parts. `count` divides the layout's shards: a part is one shard,
/// or several neighbours (the inner part of a two-axis placement), or, as {0, 1}, the whole.
struct Part {
  int64_t index = 0;
  int64_t count = 1;
};

/// A range of one parameter's elements and where it lies in the buffer of the part that holds it.
struct Piece {
  int64_t parameter = 0;
  int64_t begin = 0;   ///< first element, counted in the parameter
  int64_t length = 0;  ///< elements; never 0
  int64_t offset = 0;  ///< of that element in the part's buffer
  friend bool operator==(const Piece&, const Piece&) = default;
};

/// Where one element lies: in the buffer of part `index`, at `offset`.
struct Location {
  int64_t index = 0;
  int64_t offset = 0;
};

/// A run of parameters that is cut into equal shards. Segments follow one another, both in the full
/// buffer and in each part's.
struct Segment {
  int64_t offset = 0;               ///< of the segment in the full buffer, in elements
  int64_t shard_size = 0;           ///< elements of one shard
  int64_t granule = 1;              ///< the largest granule of its parameters
  std::vector<int64_t> parameters;  ///< indices, by rising offset
};

struct LayoutOptions {
  int64_t shards = 1;
  /// Bytes of the smallest element that any role of the group stores (main weight fp32 and model
  /// weight bf16: 2), so that every parameter starts on 16 bytes in all of them.
  int64_t element_size = 4;
};

/// How the parameters of a group lie in one flat buffer and how that buffer is cut into equal
/// shards: a pure function of shapes, granules and shard count, the same on every rank. See Note
/// [How a segment is packed] in segment_packer.h for the bounds on padding.
class SHERD_API Layout {
 public:
  /// Throws std::invalid_argument, naming the parameter, for a shape or an option that can't be
  /// laid out (negative dims, more elements than 2^62, no shards).
  static Layout build(std::vector<ParameterSpec> parameters, const LayoutOptions& options);

  int64_t shards() const { return shards_; }
  /// Every parameter and every shard starts on a multiple of this many elements.
  int64_t alignment() const { return alignment_; }
  int64_t full_size() const { return shard_size_ * shards_; }
  int64_t part_size(int64_t count) const { return shard_size_ * shards_per_part(count); }
  /// Elements of the full buffer that belong to no parameter.
  int64_t padding() const;

  std::span<const ParameterSpec> parameters() const { return parameters_; }
  std::span<const Segment> segments() const { return segments_; }
  int64_t numel(int64_t parameter) const { return entry(parameter).numel; }
  /// Of the parameter's first element in the full buffer.
  int64_t offset(int64_t parameter) const { return entry(parameter).offset; }

  /// What a part holds, by rising offset in its buffer. Empty parameters have no piece.
  std::vector<Piece> held_by(Part part) const;
  /// The piece of one parameter that a part holds; length 0 if none.
  Piece held_by(Part part, int64_t parameter) const;
  /// Which of `count` parts holds an element, and where.
  Location locate(int64_t parameter, int64_t element, int64_t count) const;

  /// A table of segments and parameters for people.
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
