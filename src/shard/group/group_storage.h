// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/cast_copy.h"
#include "kernels/fp8/encode_weights.h"
#include "shard/group/group_layout.h"

namespace sherd {

struct KeyedValues;
struct ModelBytes;

/// A group's buffers by role: model weight, main weight (the same buffer where the dtypes are
/// equal) and main gradient. Each is one flat buffer with this rank's part. Kernels run on the
/// current stream.
class GroupStorage {
 public:
  /// Allocates the weights and gives them the parameters' values on the first rank along each
  /// data-parallel axis. Parameters on the meta device stay uninitialised. Collective.
  GroupStorage(const GroupLayout& layout, const std::vector<UnshardedParameter>& parameters);
  GroupStorage(const GroupStorage&) = delete;
  GroupStorage& operator=(const GroupStorage&) = delete;

  /// Returns the buffers of the model weight, as GroupLayout::model_buffers() lists them.
  const std::vector<PartBuffer>& model_weight() const { return model_weight_; }
  const PartBuffer& main_gradient() const { return main_gradient_; }
  /// Allocates the main gradient if the group is trainable and has none yet.
  void allocate_main_gradient();
  /// Adds the bytes of the buffers.
  void add_bytes(ModelBytes& bytes) const;

  // ---- this rank's elements of each parameter, flat ----------------------------------------

  /// Returns those of the main weight. They have version counters of their own: what an optimizer
  /// writes can be told from what Sherd writes.
  const std::vector<at::Tensor>& main_pieces() const { return main_pieces_; }
  /// Returns the same elements of the main gradient; none before it is allocated.
  const std::vector<at::Tensor>& gradient_pieces() const { return gradient_pieces_; }
  /// Returns the same elements of a parameter in the model weight; undefined where that is the main
  /// weight, and with fp8.
  at::Tensor model_weight_piece(size_t member) const;
  /// Returns the elements of the main gradient that a reduction accumulates into.
  std::vector<at::Tensor> accumulated_pieces() const;

  // ---- weights and gradients ---------------------------------------------------------------

  /// Copies this rank's part of the main weight to the model weight; not with fp8.
  void publish();
  /// fp8: returns whether the main weight has changed since its encodings were made.
  bool is_stale() const { return stale_; }
  /// fp8: returns this rank's elements of each parameter, and where its encoding goes. For recipes
  /// with one scale a weight; `first_scale` is the index of that of the first parameter.
  std::vector<WeightPiece> pieces_to_encode(int64_t first_scale);
  /// fp8, other recipes: encodes this rank's elements.
  void encode_rows();
  /// fp8: declares that the encodings belong to the main weight.
  void note_encoded() { stale_ = false; }
  /// Divides this rank's part of the reduced gradient.
  void divide_gradient(double divisor) const;
  /// Returns all ranks' elements of the main weight in a new buffer of the full size; see
  /// GroupLayout::view. Blocks. Collective.
  at::Tensor gather_main_weight() const;
  /// Sets main and model weight to this rank's parts of such a buffer. With fp8 the main weight
  /// alone: its encodings are stale then, as after all functions below.
  void set_main_weight(const at::Tensor& full);

  // ---- initial values ----------------------------------------------------------------------

  /// Returns whether a parameter came from the meta device and was given no values since.
  bool is_uninitialised(size_t member) const { return uninitialised_[member]; }
  /// Returns the name of the first such parameter; nullopt if there is none.
  std::optional<std::string> first_uninitialised() const;
  /// Sets a parameter to this rank's part of `values`, which has all its elements, flat.
  void set_values(size_t member, const at::Tensor& values);
  /// Sets a parameter to values that depend on the key and the element's number in the whole alone.
  void fill_by_key(size_t member, uint64_t key, const KeyedValues& values);
  /// Declares that all main pieces were written by other means.
  void mark_all_initialised();

 private:
  std::vector<const PartBuffer*> weights() const;

  const GroupLayout& layout_;
  std::vector<PartBuffer> model_weight_;
  PartBuffer main_weight_;
  PartBuffer main_gradient_;
  std::vector<bool> uninitialised_;
  bool stale_ = false;
  std::vector<at::Tensor> main_pieces_;
  std::vector<at::Tensor> gradient_pieces_;
};

/// Pairs ranges of two buffers as copies with a cast.
std::vector<CastCopy> cast_copies(
    const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources);

}  // namespace sherd
