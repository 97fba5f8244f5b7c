// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/proof.h"
#include "sherd/plan/program.h"

namespace sherd::testing {

/// How much of a weight lies together: a rank's part over both axes, over the inner one, or all.
enum class Piece : uint8_t { over_both, over_inner, whole };

/// What the machine knows of a group, taken from its spec alone.
struct GroupFacts {
  int32_t unit = 0;
  int32_t group = 0;
  std::string name;
  Piece rests{};    ///< what the model weight at rest holds
  Piece updates{};  ///< what the update changes
  bool gradient_inner = false;
  bool gradient_outer = false;
  bool has_outer = false;
  bool learns = false;  ///< trainable, and its unit is called
  bool shares_weight = false;
  bool transposes = false;  ///< its backward reads a transposed copy
  bool two_ways = false;    ///< its backward reads a second encoding
  bool exchanges = false;   ///< its scales follow from a maximum over the ranks
  int calls = 0;            ///< of its unit, in a pass
  bool gathered() const { return rests != Piece::whole; }
};

/// What an instruction does to a resource while it runs.
struct Use {
  enum class What : uint8_t {
    parameters,
    transposed,
    gradients,
    weight,
    main_weight,
    main_gradient
  };
  What what{};
  bool write = false;
  int32_t group = 0;  ///< over all units
  int32_t begin = 0;  ///< resources; those of memory are the cells of the arena
  int32_t end = 0;
};

/// An instruction as it was issued in a sequence of sections.
struct Issued {
  const Instruction* instruction = nullptr;
  int32_t section = 0;                    ///< of the sequence
  int32_t number = 0;                     ///< in its section
  int32_t group = 0;                      ///< over all units; of the unit's first, if it names none
  std::array<int32_t, kStreams> after{};  ///< how many of each stream must be done before
  std::array<int32_t, kStreams> issued_before{};
  int32_t pass = kNone;                    ///< of a backward: counted through the sequence
  bool begins = false;                     ///< a unit's first gradients of a step: they overwrite
  bool backward = false;                   ///< in one
  int32_t until = kNone;                   ///< wait: the compute that it is for, an index
  std::pair<int32_t, int32_t> step{0, 0};  ///< update: its passes, one past the last
  std::vector<Use> uses;
  std::string fault;  ///< wrong whenever it runs
};

/// A sequence of sections as the streams see it: what each instruction waits for and touches. Only
/// data; AbstractMachine runs it.
class Timeline {
 public:
  Timeline(const Program& program, const Sequence& sequence);

  const Program& program() const { return program_; }
  const Sequence& sequence() const { return sequence_; }
  const std::vector<Issued>& issued() const { return issued_; }
  /// Of a stream, in order: indices into issued().
  const std::vector<int32_t>& queue(size_t stream) const { return queues_[stream]; }
  const std::vector<GroupFacts>& groups() const { return groups_; }
  int32_t first_group(int32_t unit) const { return first_group_[static_cast<size_t>(unit)]; }
  int32_t cells() const { return static_cast<int32_t>(edges_.size()) - 1; }
  int32_t resources() const { return cells() + 3 * static_cast<int32_t>(groups_.size()); }
  std::string resource_name(int32_t resource) const;

 private:
  void add_groups();
  void issue(const Section& section, int32_t number);
  void order(Issued& issued);
  void add_uses(Issued& issued);
  void add_uses_of_unit(Issued& issued);
  void use_slot(Issued& issued, Use::What what, bool write, int32_t group, int32_t slot);
  void use_group(Issued& issued, Use::What what, bool write, int32_t group);
  void find_cells();
  bool is_first(const Section& section) const;

  const Program& program_;
  Sequence sequence_;
  std::vector<GroupFacts> groups_;
  std::vector<int32_t> first_group_;
  std::vector<Issued> issued_;
  std::array<std::vector<int32_t>, kStreams> queues_;
  std::vector<std::pair<size_t, int32_t>> signalled_;  // by event: stream and how many must be done
  std::vector<std::pair<int64_t, int64_t>> extents_;   // bytes that uses cover
  std::vector<int64_t> edges_;                         // of the cells, ascending
  std::vector<bool> begun_;                            // by unit, in the section
  int32_t passes_ = 0;
  int32_t first_pass_ = 0;
};

}  // namespace sherd::testing
