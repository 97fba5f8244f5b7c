// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffer/runs.h"
#include "kernels/deposit.h"
#include "shard/poison.h"
#include "sherd/comm/mesh.h"
#include "sherd/plan/program.h"
#include "sherd/shard/precision.h"

namespace sherd {

struct GroupReport;
struct ModelBytes;
struct KeyedValues;

/// A parameter on its way into a group.
struct Candidate {
  std::string name;  ///< within the unit
  at::Tensor parameter;
  Granule granule = Granule::element();
  /// As the module was built; while it is sharded, the parameter has the compute dtype.
  c10::ScalarType dtype = parameter.defined() ? parameter.scalar_type() : c10::kFloat;
};

/// What all parameters of a group share.
struct GroupTraits {
  RoleDtypes dtypes{};
  bool trainable = true;
  Mesh mesh;
  DataAxes axes;
  Placement placement{Strategy::optim_grads_params};

  bool same_as(const GroupTraits& other) const;
  /// Those along which other ranks have other elements of the gradient: replicas must not count
  /// twice.
  std::vector<std::string> norm_axes() const;
};

/// The communicators of a group over its two axes, for gathers and for reductions.
struct GroupLinks {
  PerAxis<Communicator*> gather{};
  PerAxis<Communicator*> reduce{};
};

/// Where a program put a group: bytes of its arena.
struct GroupPlace {
  at::Tensor arena;    ///< of bytes
  bool eager = false;  ///< full parameters and gradients are allocated when they are needed
  int64_t parameters = kNone;
  int64_t gradients = kNone;
  int64_t stage_reduce = kNone;
  int64_t stage_outer = kNone;
};

/// The parameters of a unit that share dtype, mesh, placement and trainability: main weight, model
/// weight and main gradient, each one flat buffer of this rank's part. The module's parameters are
/// views of one more flat storage of the full size, whose address is the slot's while the unit is
/// gathered.
class Group {
 public:
  /// Takes the parameters' values and makes them views of the flat storage.
  Group(std::string label, const GroupTraits& traits, std::vector<Candidate> candidates);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& label() const { return label_; }
  const GroupTraits& traits() const { return traits_; }
  const Layout& layout() const { return *layout_; }
  size_t size() const { return names_.size(); }
  const std::string& name(size_t member) const { return names_[member]; }
  GroupSpec spec(const std::string& unit) const;

  // ---- the program's instructions ----------------------------------------------------------

  /// Prepares every instruction for the given place, so that a step only issues them.
  void bind(const GroupPlace& place, const GroupLinks& links, double divisor);
  /// Lets go of the place.
  void unbind();
  /// Eager: memory for the full parameters, until they are hidden.
  void take_parameters();
  /// Eager: memory for the full gradients, until it is dropped.
  void take_gradients();
  void drop_gradients();
  Work refresh(AxisKind axis, Communicator::OnStream stream) const;
  Work gather(AxisKind axis, Communicator::OnStream stream) const;
  Work reduce(AxisKind axis, bool scatter, Communicator::OnStream stream) const;
  void stage(AxisKind axis) const;
  void accumulate(AxisKind axis, bool overwrite) const;
  /// Whether the last micro-batch accumulates once more after that.
  bool accumulates_after(AxisKind axis) const {
    return axis != AxisKind::outer && !accumulate_.inner.deposits.empty() &&
           !accumulate_.outer.deposits.empty();
  }
  /// Where the program did not foresee it: at once, and blocking the host.
  void refresh_now() const;
  at::Tensor gather_now() const;
  /// A copy of the full parameters while they are gathered.
  at::Tensor copy_gathered() const { return slot_.clone(); }

  // ---- parameters --------------------------------------------------------------------------

  void set_unit_name(const std::string& unit);
  /// What a profiler shows an instruction as.
  const std::string& range_name(Action action) const {
    return range_names_[static_cast<size_t>(action)];
  }
  void set_message(std::string message) { flat_.set_message(std::move(message)); }
  /// The module's parameters have the values of the slot, or of the model weight where that is
  /// full.
  void show();
  void hide(bool keeps_memory = false);
  bool shown() const { return flat_.is_set(); }
  /// Shows a buffer of the full size instead.
  void show(void* data) { flat_.set(data); }
  bool gathers() const;
  /// Other ranks' updates are not in the model weight yet.
  bool refreshes() const;

  // ---- gradients ---------------------------------------------------------------------------

  /// Of the current pass (where gradients are sharded) or step.
  void forget_gradients();
  void deposit_gradient(size_t member, const at::Tensor& gradient);
  /// For who writes the gradient himself: the buffer, in the parameter's shape. Counts as written.
  struct Target {
    at::Tensor buffer;
    bool overwrite = true;
  };
  Target take_target(size_t member);
  /// Makes what is pending, and zeroes what nothing was written to.
  void zero_unwritten_gradients();
  /// Makes what is pending.
  void flush();
  void drop_pending();
  bool gradients_are_sharded() const;

  // ---- main weights ------------------------------------------------------------------------

  /// This rank's elements of each parameter: of the main weight, flat.
  const std::vector<at::Tensor>& main_pieces() const { return main_pieces_; }
  const std::vector<at::Tensor>& gradient_pieces() const { return gradient_pieces_; }
  /// Of each parameter: the main gradient's elements that a reduction accumulates into.
  std::vector<at::Tensor> accumulated_pieces() const;
  /// Of each parameter: where its gradient arrives.
  const std::vector<at::Tensor>& local_gradients() const { return targets_; }
  /// Main weight to model weight.
  void publish();
  /// This rank's elements of a parameter in the model weight; undefined where that is the main
  /// weight.
  at::Tensor model_piece(size_t member) const;
  /// Zeros for each element of this rank's main weight, laid out like it.
  struct Like {
    at::Tensor storage;
    std::vector<at::Tensor> pieces;
  };
  Like allocate_like_main(c10::ScalarType dtype) const;
  void allocate_gradient();
  /// Divides the reduced gradient.
  void divide_gradient(double divisor) const;
  /// Of the main weight, all ranks' elements, in a buffer of its own. Collective.
  at::Tensor full_main() const;
  /// A parameter in such a buffer.
  at::Tensor view(const at::Tensor& full, size_t member) const;
  /// This rank's part of such a buffer becomes the main weight, and the model weight with it.
  void take_main(const at::Tensor& full);

  // ---- initial values ----------------------------------------------------------------------

  /// Whether a parameter came without values and has got none since; the first such one's name.
  bool is_uninitialised(size_t member) const { return uninitialised_[member]; }
  std::optional<std::string> uninitialised() const;
  /// All elements of a parameter, flat; this rank's are kept.
  void take_member(size_t member, const at::Tensor& values);
  void fill_member(size_t member, uint64_t key, const KeyedValues& values);
  // ---- checkpoints -------------------------------------------------------------------------

  /// This rank's elements of a parameter as a checkpoint has them: of the main weight.
  struct Stored {
    at::Tensor piece;      ///< flat, maybe empty; what is written to it is the weight
    int64_t begin = 0;     ///< of its first element in the parameter
    int64_t replica = 0;   ///< which of those that hold the same elements this rank is,
    int64_t replicas = 1;  ///< and how many there are
  };
  Stored stored(size_t member) const;
  /// All pieces were written.
  void note_stored() { std::fill(uninitialised_.begin(), uninitialised_.end(), false); }

  /// What a parameter of the module is while it is sharded: a view of the flat storage.
  const at::Tensor& flat_view(size_t member) const { return views_[member]; }
  /// The parameter, whoever holds it, has that data from now on.
  static void point(const at::Tensor& parameter, const at::Tensor& data);

  void add_bytes(ModelBytes& bytes) const;
  /// Its sizes; the unit's name is left out.
  GroupReport report() const;

 private:
  Part part(Role role) const;
  Part accumulated() const;
  at::Tensor values_of_first_rank(const at::Tensor& parameter) const;
  at::Tensor allocate(int64_t elements, c10::ScalarType dtype) const;
  at::Tensor in_arena(int64_t offset, Part part, c10::ScalarType dtype) const;
  void bind_parameters();
  void bind_gradients();
  at::Tensor take(c10::ScalarType dtype) const;
  std::vector<CastCopy> deposits(
      const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& sources) const;

  std::string label_;
  std::vector<std::string> range_names_;  // by action
  GroupTraits traits_;
  std::vector<std::string> names_;
  std::shared_ptr<const Layout> layout_;
  c10::Device device_;
  PerAxis<int64_t> sizes_{};
  Part whole_{0, 1};
  Part inner_;  // over the inner axis alone
  Part both_;
  PartBuffer model_;
  PartBuffer main_;
  PartBuffer gradient_;
  bool shares_weight_ = true;
  FlatStorage flat_;
  std::vector<at::Tensor> views_;  // of it, by parameter
  std::vector<bool> uninitialised_;
  std::vector<at::Tensor> main_pieces_;
  std::vector<at::Tensor> gradient_pieces_;

  // As bound.
  GroupPlace place_;
  GroupLinks links_;
  double divisor_ = 1;
  at::Tensor slot_;           // the full parameters
  at::Tensor gradient_slot_;  // the full gradients
  PerAxis<std::vector<Transfer>> refresh_;
  PerAxis<std::vector<Transfer>> gather_;
  PerAxis<std::vector<Transfer>> scatter_;  // reduce-scatters, or
  PerAxis<std::vector<at::Tensor>> all_reduce_;
  PerAxis<std::vector<CastCopy>> stage_;
  struct Accumulation {
    std::vector<CastCopy> deposits;
    CastCopyKind kind;
  };
  PerAxis<Accumulation> accumulate_;
  CastCopyKind stage_kind_;

  // Gradients that have arrived: where they go, and those that wait to be copied together.
  std::vector<at::Tensor> targets_;
  std::vector<bool> written_;
  std::vector<CastCopy> pending_;
  std::vector<at::Tensor> pending_owners_;
  c10::ScalarType pending_dtype_{};
  int64_t pending_bytes_ = 0;
};

}  // namespace sherd
