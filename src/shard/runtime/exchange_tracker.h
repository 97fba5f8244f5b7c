// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shard/exchange_call.h"
#include "shard/runtime/abandonment.h"
#include "shard/runtime/bound_program.h"
#include "shard/runtime/graph_state.h"
#include "shard/runtime/pass.h"
#include "sherd/comm/world.h"

namespace sherd {

// Note [When exchanges are compared]
// Exchanges that don't fit each other hang, or bring garbage. So ranks compare what they are about
// to exchange, on the exchange's own communicator, and only then send: in words, of which 16 bytes
// travel if they are equal. A rank that ends its pass says that instead, so one that leaves an
// exchange out is found, too. The host waits for each comparison; so nothing is compared that was
// compared before. For each communicator and kind of pass a rank keeps the sequence of exchanges of
// the last such pass, which was the same on all ranks along the axis. While it repeats them it
// compares nothing. From the first exchange that is another one (a batch of another size) to the
// end of the pass it compares all, and so do the other ranks if they are right. If they are not,
// they send what they always sent, and all wait. Over mpi a rank that has waited for a second to
// compare leaves a notice, and one that has waited for a second without comparing finds it and
// throws. Over nccl they wait until the operation's time is up.
//
// Lengths that depend on routing are not compared, but an all_to_all's counts are, with the rest.
// Within the capture of a CUDA graph the host can't wait: exchanges that are not known are errors.

/// The exchanges of activations in the units of one model: records them in the pass, and has the
/// ranks along an axis compare them.
class ExchangeTracker {
 public:
  ExchangeTracker(
      const World& world,
      const GraphState& graph,
      const BoundProgram& program,
      Abandonment& abandonment);

  /// A forward or a backward begins.
  void begin(const std::shared_ptr<Pass>& pass, Section::Kind kind);
  /// A call of a unit begins or ends in a forward.
  void enter(int32_t position, const Unit& unit);
  void leave() { inside_.pop_back(); }
  /// The backward of a call of a unit, or its recompute, begins; that of the one before goes on
  /// unseen.
  void enter_backward(int32_t position, const Unit& unit);
  /// The pass ends. Ranks compare where they have compared its exchanges, or where it has fewer
  /// than the last one. Throws as run() does.
  void end();
  /// Forgets the pass and all that is known: it failed.
  void forget() noexcept;

  /// Makes an exchange of the unit that was entered last: see make_exchange().
  void run(const ExchangeCall& call, c10::function_ref<void()> send);

 private:
  /// A call of a unit.
  struct Place {
    int32_t position = kNone;
    const Unit* unit = nullptr;
  };
  /// The kinds of passes whose exchanges may differ.
  enum Kind : size_t { kTraining, kEvaluation, kBackward, kKinds };
  using Sequence = std::vector<uint64_t>;  // hashes
  /// The exchanges along one axis for one purpose.
  struct Line {
    Communicator* communicator = nullptr;
    std::shared_ptr<const void> owner;
    std::string axis;
    std::vector<int64_t> world_ranks;
    std::array<Sequence, kKinds> known;  // of the last pass of a kind
    Sequence made;                       // of this pass
    bool compares = false;               // this pass is another one, and compared
  };

  /// What this rank may wait for: an exchange, or the comparison of it or of the end of the pass.
  struct Wait {
    const Line* line = nullptr;
    size_t number = 0;
    const ExchangeCall* call = nullptr;  // null: the end
  };

  Line& line_of(const ExchangeCall& call);
  void look();
  std::string words_of(const Wait& wait) const;
  ExchangePass pass_kind() const;
  void record(const ExchangeCall& call);
  uint64_t record_flight(const ExchangeCall& call) const;
  void follow(const ExchangeCall& call);
  void compare(const Line& line, const std::string& words) const;
  void compare_counts(const Line& line, const ExchangeCall& call) const;
  const char* name_of_pass() const;

  World world_;
  const GraphState& graph_;
  const BoundProgram& program_;
  Abandonment& abandonment_;
  std::function<void()> look_function_;
  std::vector<std::unique_ptr<Line>> lines_;  // in the order of their first use
  std::shared_ptr<Pass> pass_;
  Kind kind_ = kTraining;
  std::vector<Place> inside_;  // the calls under way; of a backward the last one entered
  Wait wait_;
  int64_t passes_ = 0;  // that have begun
};

}  // namespace sherd
