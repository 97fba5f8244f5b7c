// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/exchange.h"
#include "sherd/plan/network.h"
#include "sherd/plan/placement.h"

namespace sherd {

/// The bytes of one element in each role of a group.
struct ElementSizes {
  int64_t model = 4;     ///< model weight: the model computes with it, and it is gathered
  int64_t main = 4;      ///< main weight (master weight): the optimizer updates it
  int64_t gradient = 4;  ///< main gradient: gradients accumulate in it
  int64_t reduce = 4;    ///< gradients while they are sent in a reduction
  friend bool operator==(const ElementSizes&, const ElementSizes&) = default;
};

/// The encoding of a group's model weights in fp8. Without one, an element takes
/// ElementSizes::model bytes and that is all.
struct WeightEncoding {
  int64_t block = 0;        ///< elements that share a scale which is gathered with them; 0: none
  int64_t scale_bytes = 0;  ///< bytes of such a scale
  int64_t exchanged = 0;    ///< scales that follow from a maximum over ranks after each update
  bool transposes = false;  ///< backwards compute with transposed copies
  bool two_ways = false;  ///< weights are encoded twice; only backwards gather the second encoding
  friend bool operator==(const WeightEncoding&, const WeightEncoding&) = default;
};

/// A group in a program.
struct GroupSpec {
  std::string name;
  int64_t elements = 0;  ///< elements of the full buffer, padding included
  Placement placement{Strategy::optim_grads_params};
  PerAxis<int64_t> axis_sizes{1, 1};            ///< number of ranks along each axis
  PerAxis<std::string> axes{"dp", "dp_outer"};  ///< names of the axes
  bool has_outer = false;                       ///< the mesh has an outer data-parallel axis
  ElementSizes bytes;
  WeightEncoding encoding{};
  bool trainable = true;
  /// Main and model weight have the same dtype, so the main weight is part of the model weight.
  bool shares_weight = true;
  /// Reduce dtype and main gradient's dtype are the same, so a reduction needs no copy.
  bool reduces_in_place = true;
  std::string layout;  ///< other facts that ranks must agree on: shapes, granules, dtypes
};

/// A unit in a program: groups that are gathered and released together.
struct UnitSpec {
  std::string name;
  std::vector<GroupSpec> groups;
  /// Not released (resharded) between forward and backward.
  bool keep_gathered = false;
  /// Units to gather ahead when this one begins its forward; empty: the next `prefetch_depth`.
  std::vector<int32_t> prefetch;
  /// The same for its backward.
  std::vector<int32_t> backward_prefetch{};
};

/// The begin or the end of a unit's call in the forward. Calls that the unit makes itself come
/// between the two.
struct CallEvent {
  int32_t unit = 0;   ///< index of the unit
  bool enter = true;  ///< begin of the call; otherwise its end
  /// Number of the recompute around the call, which all calls under it share; -1: none. Only
  /// meaningful with `enter`.
  int32_t recompute = -1;
  friend bool operator==(const CallEvent&, const CallEvent&) = default;
};

/// The calls of a forward, in order. The *position* of a call is its index among the begins.
using CallOrder = std::vector<CallEvent>;

/// The stream that an instruction runs on. `outer` is for collectives over the outer axis of HSDP
/// and HFSDP.
enum class Stream : uint8_t { compute, gather, reduce, outer };
inline constexpr size_t kStreams = 4;

/// The kinds of instructions. Four of them stand for work that the program does not issue:
/// `compute` is done by the module between two boundaries, and issuing it only signals its end;
/// `update`, `exchange` and `publish` are the optimizer's work and are never issued (see
/// Program::update).
enum class Action : uint8_t {
  refresh,     ///< all-gather the updated elements into the model weight
  gather,      ///< all-gather the model weight into its slot
  transpose,   ///< write the transposed copies of fp8 weights to their slot
  wait,        ///< wait for the unit's parameters, before it computes
  compute,     ///< the module's own work after `wait`; issued when it ends
  release,     ///< give the parameters' slot back (reshard)
  open,        ///< take a slot for the unit's full gradients
  stage,       ///< copy the main gradient to the reduce dtype
  reduce,      ///< reduce-scatter or all-reduce, in place in a slot or the main gradient
  accumulate,  ///< cast, divide and add the reduced gradient to the main gradient
  drain,       ///< wait for all reductions
  update,      ///< the optimizer's update of the main weights; never issued
  exchange,    ///< all-reduce the largest magnitudes of fp8 weights; never issued
  publish,     ///< copy (fp8: encode) the main weight to the model weight; never issued
};
inline constexpr size_t kActions = static_cast<size_t>(Action::publish) + 1;

/// The data-parallel axis of a collective; `none` for other instructions.
enum class AxisKind : uint8_t { none, inner, outer };

SHERD_API const char* to_text(Stream stream);
SHERD_API const char* to_text(Action action);

/// The index that means none.
inline constexpr int32_t kNone = -1;

/// One instruction. It starts when the instruction before it on its stream is done and the events
/// that it waits for have happened. To wait for an event is to wait for the last instruction issued
/// before this one that signals it.
struct Instruction {
  Action action{};
  Stream stream{};
  AxisKind axis{};         ///< axis of a collective
  bool scatter = false;    ///< reduce: reduce-scatter; otherwise all-reduce
  bool overwrite = false;  ///< accumulate: set the main gradient; otherwise add to it
  bool two_ways = false;   ///< gather: the second encoding of an fp8 weight, too
  int32_t unit = kNone;    ///< index of the unit
  int32_t group = kNone;   ///< index within the unit
  int32_t slot = kNone;    ///< slot that it reads or writes
  /// Another slot that it reads. wait, compute: the transposed copies; transpose: the parameters.
  int32_t also_reads = kNone;
  int64_t bytes = 0;             ///< bytes of the full side of a collective
  std::vector<int32_t> waits{};  ///< events to wait for
  int32_t signals = kNone;       ///< event that its end signals
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

/// The instructions that the host issues at one point of a pass: on entering or leaving a unit, on
/// entering it again for a recompute, or at the end.
struct Boundary {
  enum class Kind : uint8_t { enter, exit, recompute, end };
  Kind kind{};
  int32_t position = kNone;  ///< position of the call
  int32_t unit = kNone;      ///< index of the unit
  int32_t begin = 0;         ///< first instruction
  int32_t end = 0;           ///< one past the last
};

/// The instructions of one forward, one backward or the update; that of the update is never
/// executed (see Program::update).
struct Section {
  enum class Kind : uint8_t { forward, backward, update };
  Kind kind{};
  bool train = true;            ///< forward: a backward follows
  bool still_gathered = false;  ///< keep_gathered units are gathered at its begin
  std::string name;
  std::vector<Instruction> instructions;  ///< in order of issue
  std::vector<Boundary> boundaries;       ///< ranges of `instructions`, in order
  /// Backward, by position: the boundary at which the call is entered.
  std::vector<int32_t> entered;
  /// Backward, by position: the boundary at which the call is recomputed; kNone: it is not.
  std::vector<int32_t> recomputed;
};

/// A byte range of the arena that several units use, one at a time. Slots may overlap; then only
/// one of them is in use at a time.
struct Slot {
  std::string name;
  int64_t offset = 0;  ///< first byte in the arena
  int64_t bytes = 0;   ///< size
};

/// The slots of a unit's full parameters, their transposed copies and full gradients; kNone if it
/// needs none.
struct SlotAssignment {
  int32_t parameters = kNone;               ///< slot of the parameters
  int32_t transposed = kNone;               ///< slot of the transposed copies of fp8 weights
  int32_t gradients = kNone;                ///< slot of the gradients
  std::vector<int64_t> parameter_offsets;   ///< offset of each group in the parameters' slot
  std::vector<int64_t> transposed_offsets;  ///< offset of each group in the transposed slot
  std::vector<int64_t> gradient_offsets;    ///< offset of each group in the gradients' slot
};

/// The kind of a forward.
struct ForwardFlags {
  bool changed = false;         ///< weights have changed since the last pass of any kind
  bool train = true;            ///< a backward follows
  bool still_gathered = false;  ///< keep_gathered units are still gathered, from an earlier forward
};

/// The kind of a backward.
struct BackwardFlags {
  bool first = true;            ///< first of the step: overwrites the main gradients
  bool last = true;             ///< last of the step: completes the reductions
  bool still_gathered = false;  ///< keep_gathered units are gathered now
};

/// The allocation of full parameters and gradients.
enum class MemoryKind : uint8_t {
  planned,  ///< in one arena, at fixed addresses, allocated once
  eager,    ///< from torch's allocator each time, as other FSDP implementations do
};
SHERD_API const char* to_text(MemoryKind kind);

/// Options of Program::build.
struct ProgramOptions {
  int64_t prefetch_depth = 1;  ///< number of units gathered ahead
  int64_t micro_batches = 1;   ///< backwards of a step
  MemoryKind memory = MemoryKind::planned;
  int64_t budget = 0;  ///< most bytes of ProgramBytes::peak(); 0: no limit
  /// Description of the loss's scaling. Only compared between ranks, as part of the fingerprint.
  std::string loss = "mean";
};

/// The bytes of a program on one rank, by purpose.
struct ProgramBytes {
  int64_t model_weights = 0;
  int64_t main_weights = 0;  ///< main weights that are not part of a model weight
  int64_t main_gradients = 0;
  int64_t arena = 0;  ///< size of the arena; eager: the same as `bound`
  int64_t bound = 0;  ///< most bytes of slots in use at once: no arena can be smaller
  /// Returns the bytes between steps, without the arena.
  int64_t rest() const { return model_weights + main_weights + main_gradients; }
  /// Returns the largest number of bytes, arena included; activations and optimizer state are not
  /// counted.
  int64_t peak() const { return rest() + arena; }
};

/// The collectives of one kind.
struct Traffic {
  int64_t calls = 0;  ///< number of collectives
  int64_t bytes = 0;  ///< bytes of their full sides
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// The collectives of a step or a section. Those of the program, by kind, do not count exchanges of
/// activations, which the modules make themselves.
struct SHERD_API StepTraffic {
  Traffic all_gather;
  Traffic reduce_scatter;
  Traffic all_reduce;
  std::map<std::string, Traffic> exchanges{};  ///< exchanges of activations, by axis
  friend bool operator==(const StepTraffic&, const StepTraffic&) = default;
  StepTraffic& operator+=(const StepTraffic& other);
};

class UnitTree;
struct Needs;

/// A training step as data: the instructions of each stream at each unit's boundary, and the
/// addresses of all buffers. A pure function of its arguments. Every program has passed a proof
/// that its streams never race and that its gradients are complete (see src/plan/proof.h).
class SHERD_API Program {
 public:
  /// Further inputs of build(), known once a model has run.
  struct RebuildHints {
    /// Order of calls in passes without a backward, if it differs.
    std::optional<CallOrder> evaluation{};
    /// Program with the same units whose addresses are kept; null: none. build() throws
    /// std::runtime_error, naming the units, if they can't be kept.
    const Program* before = nullptr;
  };
  /// Builds a program and proves it. Units that `order` leaves out keep their weights and gradients
  /// but take no part in a step. Throws std::invalid_argument if calls in `order` do not nest, and
  /// std::runtime_error if the proof fails or the budget is exceeded.
  static Program build(
      std::vector<UnitSpec> units,
      CallOrder order,
      const ProgramOptions& options,
      RebuildHints more);
  static Program build(
      std::vector<UnitSpec> units, CallOrder order, const ProgramOptions& options) {
    return build(std::move(units), std::move(order), options, RebuildHints());
  }

  /// Returns this program with the exchanges of activations that the modules make: one list for
  /// each position of order(), or none at all if they are unknown. They use no memory of the
  /// program, so they change neither instructions nor addresses, and there is nothing to prove.
  /// Throws std::invalid_argument if the number of lists is another, or for negative sizes.
  Program with_exchanges(std::vector<CallExchanges> exchanges) const;

  const std::vector<UnitSpec>& units() const { return units_; }
  /// Returns the order of calls in training.
  const CallOrder& order() const { return order_; }
  /// Returns the order of calls in passes with (`train`) or without a backward.
  const CallOrder& order(bool train) const { return train || !evaluation_ ? order_ : *evaluation_; }
  /// Returns the exchanges of activations by position of order(); empty if none are known.
  const std::vector<CallExchanges>& exchanges() const { return exchanges_; }
  /// Returns the exchanges that the call at a position makes in a section: in a backward, those of
  /// the recompute and the backward.
  CallExchanges exchanges_in(const Section& section, int32_t position) const;
  const ProgramOptions& options() const { return options_; }
  const std::vector<Slot>& slots() const { return slots_; }
  /// Returns the slots of a unit.
  const SlotAssignment& slots_of(int32_t unit) const {
    return assignments_[static_cast<size_t>(unit)];
  }
  /// Returns the names of the events.
  const std::vector<std::string>& events() const { return events_; }

  // The instructions of a forward or backward of a kind, of the update, and all sections.
  const Section& forward(const ForwardFlags& flags) const;
  const Section& backward(const BackwardFlags& flags) const;
  /// Returns the section of the update, which is never executed: the optimizer does that work
  /// itself, and its last event is signalled when the weights are published. The section is there
  /// to be proved, priced, printed and recorded with the others.
  const Section& update() const { return update_; }
  std::vector<const Section*> sections() const;
  /// Returns the sections of a whole step in their order, without the update: forward and backward
  /// of each micro-batch, the first after an update.
  std::vector<const Section*> step() const;

  /// Returns the bytes that the program needs on this rank.
  ProgramBytes bytes() const { return bytes_; }
  /// Returns the collectives and exchanges of a whole step, the update included.
  StepTraffic traffic() const;

  /// Returns a hash of facts(). Ranks compare it: their programs must be the same.
  uint64_t fingerprint() const { return fingerprint_; }
  /// Returns the facts that all ranks must agree on, one a line.
  std::string facts() const;
  /// Returns the program as text: traffic, memory, slots and the instructions of all sections.
  std::string to_text() const;
  /// Returns the same as JSON.
  std::string to_json() const;

 private:
  friend struct ProgramMutation;  // for tests
  Program() = default;

  void build_sections(const UnitTree& tree, const UnitTree& evaluation);
  void hash_facts();
  void take_slots(const Needs& needs, const std::vector<int64_t>& offsets);
  int32_t slot_named(const char* name) const;

  std::vector<UnitSpec> units_;
  CallOrder order_;
  std::optional<CallOrder> evaluation_;
  std::vector<CallExchanges> exchanges_;  // by position of order_
  ProgramOptions options_;
  std::vector<Slot> slots_;
  std::vector<SlotAssignment> assignments_;
  std::vector<std::string> events_;
  std::vector<Section> forward_;   // by flags
  std::vector<Section> backward_;  // by flags
  Section update_;                 // never executed
  ProgramBytes bytes_;
  uint64_t fingerprint_ = 0;
};

/// Returns the collective that an instruction runs; nothing if it runs none.
SHERD_API std::optional<Collective> collective_of(const Instruction& instruction);

/// Returns the collectives of one section.
SHERD_API StepTraffic traffic_of(const Section& section);

/// Returns an order in which each unit is called once, by the unit that `parents` gives for it
/// (kNone: by none). Units with the same parent are called in the order of their indices.
SHERD_API CallOrder order_of_tree(std::span<const int32_t> parents);

}  // namespace sherd
