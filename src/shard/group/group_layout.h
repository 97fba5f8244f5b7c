// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "shard/group/group_traits.h"
#include "sherd/comm/communicator.h"
#include "sherd/plan/cut.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/program.h"

namespace sherd {

/// A parameter of a module before it is sharded, or after it was given back.
struct UnshardedParameter {
  std::string name;  ///< within the unit
  at::Tensor parameter;
  Granule granule = Granule::element();
  std::optional<Cut> cut{};  ///< the part of a whole that it is; none: the whole
  /// The dtype that the module was built with; a sharded parameter has the compute dtype.
  c10::ScalarType dtype = parameter.defined() ? parameter.scalar_type() : c10::kFloat;
};

/// A flat buffer that holds one part of a group.
struct PartBuffer {
  at::Tensor storage;  ///< one dim
  Part part;
  int64_t block = 1;  ///< elements of the group for each entry: above 1 for scales
};

/// A kind of buffer that a group's model weight consists of: the values, and with fp8 their scales.
struct ModelBuffer {
  c10::ScalarType dtype{};
  int64_t block = 1;  ///< as PartBuffer::block
};

/// The positions of a group's parameters in a flat buffer, and the parts of such a buffer that this
/// rank holds. Members are numbered in the order in which the parameters were given.
class GroupLayout {
 public:
  GroupLayout(const GroupTraits& traits, const std::vector<UnshardedParameter>& parameters);

  const GroupTraits& traits() const { return traits_; }
  /// Returns the positions in the full buffer.
  const Layout& flat() const { return flat_; }
  /// Returns the group as the program's builder sees it, without a name.
  const GroupSpec& spec() const { return spec_; }
  c10::Device device() const { return traits_.mesh.world().device(); }
  size_t size() const { return flat_.parameters().size(); }
  const std::string& name(size_t member) const { return flat_.parameters()[member].name; }
  /// Returns the part of a whole that a parameter is; nothing: it is the whole.
  const std::optional<Cut>& cut(size_t member) const { return cuts_[member]; }
  /// Returns the shape of the whole that a parameter is a part of.
  const std::vector<int64_t>& whole_shape(size_t member) const {
    return cuts_[member] ? cuts_[member]->shape : flat_.parameters()[member].shape;
  }

  // ---- parts of a buffer that this rank holds ----------------------------------------------

  static Part whole() { return {0, 1}; }
  Part inner_part() const { return inner_part_; }  ///< sharded over the inner axis alone
  Part both_part() const { return both_part_; }    ///< sharded over both axes
  /// Returns the part that this rank holds in a role.
  Part part(Role role) const;
  /// Returns the spreads of the main weight. Frozen weights are never refreshed, so each rank keeps
  /// its whole part of the model weight.
  const Spreads& main_spreads() const;
  Part main_part() const;
  /// Returns the part of the main gradient that the first accumulation after a reduction writes.
  Part accumulated_part() const;

  // ---- consequences of the placement -------------------------------------------------------

  /// Returns whether parameters must be gathered before the model can compute with them.
  bool needs_gather() const;
  /// Returns whether after an update the model weight lacks the elements that other ranks updated.
  bool needs_refresh() const;
  bool shards_gradients() const;
  /// Returns whether the model weight is the main weight too: one buffer for both.
  bool shares_weight() const { return spec_.shares_weight; }
  bool is_fp8() const { return traits_.fp8 != Fp8::none; }

  // ---- the model weight --------------------------------------------------------------------

  /// Returns the buffers of the model weight: values, and scales if they are gathered; for mxfp8
  /// both again, in the second encoding.
  std::vector<ModelBuffer> model_buffers() const;
  /// Returns the bytes of all of them in full, as they follow one another in a slot.
  int64_t payload_bytes() const;
  /// Returns them as parts of such bytes: typed, flat, of the full size.
  std::vector<at::Tensor> payload_views(const at::Tensor& bytes) const;
  /// Returns the transposed copies of the values and, if they are gathered, the scales as parts of
  /// the bytes of a transposed slot.
  std::vector<at::Tensor> transposed_views(const at::Tensor& bytes) const;

  // ---- views -------------------------------------------------------------------------------

  /// Returns a parameter in its shape, within a buffer of the full size.
  at::Tensor view(const at::Tensor& full, size_t member) const;
  // In these three, `wanted` is the buffer's own part or a part of that one.

  /// Returns the elements of a parameter that part `wanted` has, within the buffer: flat.
  at::Tensor piece(const PartBuffer& buffer, Part wanted, size_t member) const;
  /// Returns the same for all parameters.
  std::vector<at::Tensor> pieces(const PartBuffer& buffer, Part wanted) const;
  /// Returns the elements of part `wanted` within the buffer: one range per segment of the layout.
  std::vector<at::Tensor> ranges(const PartBuffer& buffer, Part wanted) const;
  /// Allocates a buffer of zeros with the elements of a part, or one entry for each `block` of
  /// them.
  PartBuffer allocate(Part part, c10::ScalarType dtype, int64_t block = 1) const;

 private:
  GroupTraits traits_;
  Layout flat_;
  std::vector<std::optional<Cut>> cuts_;  // of each parameter
  GroupSpec spec_;
  Part inner_part_;
  Part both_part_;
};

/// Pairs the ranges of two buffers; the larger (or target) side comes first.
std::vector<Transfer> pair_ranges(
    const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);

}  // namespace sherd
