// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/placement.h"

namespace sherd {

/// Bytes of one element in each role of a group.
struct ElementSizes {
  int64_t model = 4;     ///< what the model computes with, and what is gathered
  int64_t main = 4;      ///< what the optimizer updates
  int64_t gradient = 4;  ///< the main gradient, where gradients accumulate
  int64_t reduce = 4;    ///< what travels when gradients are reduced
  friend bool operator==(const ElementSizes&, const ElementSizes&) = default;
};

/// A group as the program sees it.
struct GroupSpec {
  std::string name;
  int64_t elements = 0;  ///< of the full buffer, padding included
  Placement placement{Strategy::optim_grads_params};
  PerAxis<int64_t> axis_sizes{1, 1};
  PerAxis<std::string> axes{"dp", "dp_outer"};  ///< their names
  bool has_outer = false;                       ///< the mesh has an outer data-parallel axis
  ElementSizes bytes;
  bool trainable = true;
  /// Main and model weight have one dtype, so the main weight lies inside the model weight.
  bool shares_weight = true;
  /// The reduce dtype is the main gradient's, so what is reduced needs no copy of its own.
  bool reduces_in_place = true;
  std::string layout;  ///< whatever else ranks must agree on: shapes, granules, dtypes
};

/// A unit: groups that are gathered and released together.
struct UnitSpec {
  std::string name;
  std::vector<GroupSpec> groups;
  /// No release between forward and backward.
  bool keep_gathered = false;
  /// The units to gather ahead when this one starts its forward, instead of the next `depth`.
  std::vector<int32_t> prefetch;
};

/// One call of a unit in the forward: those it makes itself come between its two visits.
struct Visit {
  int32_t unit = 0;
  bool enter = true;
  /// Calls under one recompute share its number; -1 outside. Counted for `enter` only.
  int32_t recompute = -1;
  friend bool operator==(const Visit&, const Visit&) = default;
};

/// The calls of a forward, in order. A *position* is the index of an entering visit among them.
using Order = std::vector<Visit>;

/// Where an instruction runs. `outer` carries what travels over the outer axis of HSDP and HFSDP.
enum class Stream : uint8_t { compute, gather, reduce, outer };
inline constexpr size_t kStreams = 4;

enum class Action : uint8_t {
  refresh,     ///< all-gather what the update changed into the model weight at rest
  gather,      ///< all-gather the model weight into its slot
  wait,        ///< the unit's parameters are there; the unit may compute
  compute,     ///< what the unit computed since its `wait`
  release,     ///< the slot is given back
  open,        ///< the unit takes a slot for its full gradients
  stage,       ///< the main gradient is copied to the reduce dtype
  reduce,      ///< reduce-scatter or all-reduce, in place: a slot, or the main gradient
  accumulate,  ///< what was reduced goes to the main gradient: cast, divided, added
  drain,       ///< all reductions are done
  update,      ///< the optimizer changes the main weights
  publish,     ///< main weight to model weight
};
inline constexpr size_t kActions = static_cast<size_t>(Action::publish) + 1;

enum class AxisKind : uint8_t { none, inner, outer };

SHERD_API const char* to_text(Stream stream);
SHERD_API const char* to_text(Action action);

inline constexpr int32_t kNone = -1;

/// One instruction. It starts when its predecessor on its stream is done and the events it waits
/// for have happened, each as it was last signalled by an instruction issued before.
struct Instruction {
  Action action{};
  Stream stream{};
  AxisKind axis{};         ///< of a collective
  bool scatter = false;    ///< reduce: a reduce-scatter rather than an all-reduce
  bool overwrite = false;  ///< accumulate: the first gradients of the step
  int32_t unit = kNone;
  int32_t group = kNone;         ///< within the unit
  int32_t slot = kNone;          ///< that it reads or writes
  int64_t bytes = 0;             ///< of the full side of a collective
  std::vector<int32_t> waits{};  ///< events
  int32_t signals = kNone;       ///< the event that its end is
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// What the host issues at one point: on entering or leaving a unit.
struct Boundary {
  enum class Kind : uint8_t { enter, exit, recompute, end };
  Kind kind{};
  int32_t position = kNone;
  int32_t unit = kNone;
  int32_t begin = 0;  ///< first instruction
  int32_t end = 0;    ///< one past the last
};

/// The forward or the backward of one pass, or the update.
struct Section {
  enum class Kind : uint8_t { forward, backward, update };
  Kind kind{};
  bool train = true;  ///< forward: a backward follows
  bool kept = false;  ///< units that stay gathered are so from an earlier forward
  std::string name;
  std::vector<Instruction> instructions;  ///< in the order in which they are issued
  std::vector<Boundary> boundaries;
  /// Backward: the boundary where each position is entered, and where it is recomputed (kNone: it
  /// is not).
  std::vector<int32_t> entered;
  std::vector<int32_t> recomputed;
};

/// A byte range of the arena that units take turns in. Ranges may overlap: then the units of both
/// do.
struct Slot {
  std::string name;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Where a unit's full parameters and full gradients lie; kNone where it needs no slot.
struct Place {
  int32_t parameters = kNone;
  int32_t gradients = kNone;
  std::vector<int64_t> parameter_offsets;  ///< of each group, in its slot
  std::vector<int64_t> gradient_offsets;
};

struct ForwardFlags {
  bool changed = false;  ///< weights changed since the last pass of any kind
  bool train = true;
  bool kept = false;  ///< units that stay gathered are still so, from an earlier forward
};

struct BackwardFlags {
  bool first = true;  ///< gradients of the step: overwrite
  bool last = true;   ///< gradients of the step: finish the reduction
  bool kept = false;
};

/// Where full parameters and gradients lie.
enum class MemoryKind : uint8_t {
  planned,  ///< in one arena, each at one address for life
  eager,    ///< wherever torch's allocator puts them, each time anew
};
SHERD_API const char* to_text(MemoryKind kind);

struct ProgramOptions {
  int64_t prefetch_depth = 1;  ///< in units
  int64_t micro_batches = 1;
  MemoryKind memory = MemoryKind::planned;
  int64_t budget = 0;  ///< bytes that rest and arena may take; 0: no limit
  /// Reduced gradients are divided by this (the data-parallel ranks, for a mean).
  std::string loss = "mean";
};

/// Bytes of a rank, by what they are for.
struct ProgramBytes {
  int64_t model_weights = 0;
  int64_t main_weights = 0;  ///< beyond those that lie inside model weights
  int64_t main_gradients = 0;
  int64_t arena = 0;  ///< eager: what is taken at most at any instant
  int64_t bound = 0;  ///< the most that is taken at any instant: no arena can be smaller
  int64_t rest() const { return model_weights + main_weights + main_gradients; }
  int64_t peak() const { return rest() + arena; }
};

/// Collectives of one kind: how many, and the bytes of their full sides.
struct Traffic {
  int64_t calls = 0;
  int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

struct StepTraffic {
  Traffic all_gather;
  Traffic reduce_scatter;
  Traffic all_reduce;
  friend bool operator==(const StepTraffic&, const StepTraffic&) = default;
  StepTraffic& operator+=(const StepTraffic& other);
};

class UnitTree;
struct Needs;

/// The step as data: what each stream does at each unit's boundary, and where everything lies. A
/// pure function of its arguments; the proof has accepted it (see proof.h).
class SHERD_API Program {
 public:
  /// `order` may leave units out; they keep their bytes and take no part. `more` says what else is
  /// known. Throws std::invalid_argument for an order that is not nested, and std::runtime_error
  /// with the proof's words for a program that it refuses.
  struct More {
    /// Of passes without a backward, if that is another.
    std::optional<Order> evaluation{};
    /// Whose addresses are to be kept. Throws std::runtime_error, naming the units, if they can't
    /// be.
    const Program* before = nullptr;
  };
  static Program build(
      std::vector<UnitSpec> units, Order order, const ProgramOptions& options, More more);
  static Program build(std::vector<UnitSpec> units, Order order, const ProgramOptions& options) {
    return build(std::move(units), std::move(order), options, More());
  }

  const std::vector<UnitSpec>& units() const { return units_; }
  const Order& order() const { return order_; }
  const Order& order(bool train) const { return train || !evaluation_ ? order_ : *evaluation_; }
  const ProgramOptions& options() const { return options_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const Place& place(int32_t unit) const { return places_[static_cast<size_t>(unit)]; }
  const std::vector<std::string>& events() const { return events_; }

  const Section& forward(const ForwardFlags& flags) const;
  const Section& backward(const BackwardFlags& flags) const;
  const Section& update() const { return update_; }
  std::vector<const Section*> sections() const;

  ProgramBytes bytes() const { return bytes_; }
  /// Of a step of `micro_batches` passes, after an update.
  StepTraffic traffic() const;

  /// Equal on all ranks, or the ranks would not understand each other.
  uint64_t fingerprint() const { return fingerprint_; }
  /// The facts that the fingerprint is taken of, one a line.
  std::string facts() const;
  std::string to_text() const;
  std::string to_json() const;

 private:
  friend struct ProgramMutation;  // of the tests
  Program() = default;

  void build_sections(const UnitTree& tree, const UnitTree& evaluation);
  void take_slots(const Needs& needs, const std::vector<int64_t>& offsets);
  int32_t slot_named(const char* name) const;

  std::vector<UnitSpec> units_;
  Order order_;
  std::optional<Order> evaluation_;
  ProgramOptions options_;
  std::vector<Slot> slots_;
  std::vector<Place> places_;
  std::vector<std::string> events_;
  std::vector<Section> forward_;   // by flags
  std::vector<Section> backward_;  // by flags
  Section update_;
  ProgramBytes bytes_;
  uint64_t fingerprint_ = 0;
};

/// The collectives of one section.
SHERD_API StepTraffic traffic_of(const Section& section);

/// An order where units nest as `parents` says (kNone: nothing around it), each called once, and
/// those of one parent in the order of their numbers.
SHERD_API Order order_of_tree(std::span<const int32_t> parents);

}  // namespace sherd
