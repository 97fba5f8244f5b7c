// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/symmetric.h"
#include "shard/agreement.h"
#include "shard/parameter_shards.h"
#include "shard/program_streams.h"
#include "shard/recorder.h"
#include "shard/unit.h"
#include "shard/watch.h"
#include "shard/weight_change_detector.h"
#include "sherd/plan/program.h"
#include "sherd/shard/boundary.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {

struct Region;

/// How often a rank without data looks at what the others do: they need the cores.
constexpr std::chrono::microseconds kFollowPause{100};
/// Whether a section has collectives.
bool communicates(const Section& section);

/// One forward, and what its backward needs to know of it.
struct Pass {
  std::shared_ptr<const Program> program;  ///< in whose order it ran
  bool train = true;
  int64_t weights = 0;  ///< that it computed with
  std::vector<int32_t>
      remapped_positions{};  ///< where positions are that the program has elsewhere; empty: none
  /// By position: the number that autograd gives the first node made within the call.
  std::vector<uint64_t> first_nodes{};
  /// Full parameters, by position, of calls under a recompute that the program did not expect:
  /// there is no gather when they are computed again.
  std::map<int32_t, std::vector<at::Tensor>> copies{};
  /// This rank's calls and recomputes, for the other ranks, if the program expected others.
  std::vector<int64_t> new_recomputes{};

  int32_t place(int32_t position) const {
    return remapped_positions.empty() ? position
                                      : remapped_positions[static_cast<size_t>(position)];
  }
  void note_first_node(int32_t position);
};

/// The units of one model at work: the program, its arena and streams, and where in it we are.
///
/// Units hold it; it holds none of them. One thread at a time: the caller's in the forward,
/// autograd's in the backward.
class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  /// The runtime of a unit. The first call makes one, with the unit as root of all units inside
  /// its module: collective.
  static std::shared_ptr<Runtime> of(Unit& unit);
  /// The same for a module that must be a root: the caller's mistake otherwise.
  static std::shared_ptr<Runtime> of_model(const torch::nn::Module& model, const char* caller);
  ~Runtime();

  // ---- boundaries (passes.cpp, backward.cpp) -----------------------------------------------
  UnitCall before_forward(Unit& unit);
  void after_forward(UnitCall& call, std::span<const at::Tensor> outputs);
  void before_backward(const UnitCall& call);
  void after_backward(const UnitCall& call);
  void abandon() noexcept;
  void idle_pass();

  // ---- the step ----------------------------------------------------------------------------
  void set_micro_batches(int64_t count);
  int64_t micro_batches() const { return micro_batches_; }
  int64_t backwards_done() const { return backwards_done_; }
  /// Throws unless all backwards of the step are done, on all ranks. Collective.
  void check_complete(const char* caller);
  void divide_by_tokens(double tokens);
  /// `by_optimizer`: the model weights are written already.
  void publish(bool by_optimizer = false);
  /// Main weights were given other values from outside: publishes them, which is no step.
  void publish_loaded();
  void finish();
  /// Somebody wrote main and model weights alike.
  void note_edit();
  /// Throws if a unit was deleted.
  void check_whole() const;
  /// Of the parameters that were trainable when they were sharded, in the order of
  /// sherd::named_parameters: whether each was frozen when the last backward began.
  const std::vector<bool>& frozen() const { return frozen_; }
  std::vector<bool> frozen_now() const;
  /// Warns if the first step's gradients were not used by the optimizer.
  void warn_if_unchanged() const;
  /// Throws, naming it, if a parameter has no values.
  void check_initialised() const;
  /// Throws, naming the unit, if something is gathered or under way.
  void check_resting(const char* caller);
  /// Waits until a backward that failed is over: its caller may be told before autograd's thread
  /// has let go of it.
  void notice_failure() noexcept;

  const std::vector<Unit*>& units() const { return units_; }
  Unit& root() const { return *units_.back(); }
  /// This rank's elements of all parameters.
  const std::vector<ParameterShard>& shards() const { return shards_; }
  const Program& program() const { return *program_; }
  const World& world() const { return world_; }
  int64_t steps() const { return step_; }  ///< that were published
  /// A parameter's, in the root's module.
  std::string full_name(const Unit& unit, const std::string& name) const;
  /// What the first ranks with something to say have said. Collective; blocks.
  std::vector<Statement> exchange_text(const std::string& text, size_t most) const {
    return agreement_->collect(text, most);
  }
  // ---- graphs (capture.cpp) ----------------------------------------------------------------
  void check_capturable();
  void begin_capture();
  void end_capture();
  void stop_capturing() noexcept;
  /// `version`: of the update, when the step was captured. `takes_tokens`: it divides by a number
  /// of tokens that is to be given before each replay.
  void before_replay(int64_t version, bool takes_tokens);
  void after_replay();
  bool capturing() const { return capturing_; }
  /// Changes when the optimizer's table of work does: graphs have the old one.
  int64_t update_version() const { return update_version_; }
  void note_new_update() { ++update_version_; }
  void note_tokens_captured() { tokens_captured_ = true; }
  bool take_tokens_captured() { return std::exchange(tokens_captured_, false); }
  void note_tokens_given() { tokens_given_ = true; }
  /// Whether a function that writes a parameter's gradient itself may do so now: in a backward
  /// with `inputs` autograd decides which gradients are wanted.
  bool takes_all_gradients() const { return !partial_; }

  // ---- diagnostics -------------------------------------------------------------------------
  void set_watch(const WatchOptions& options);
  /// What was found on all ranks. Collective; blocks.
  std::vector<Finding> findings();
  /// Warns of it, or throws and says the consequence, too. Collective; blocks.
  void report(const char* consequence = "");
  void expect_overflow(bool expected) { watch_.expect_overflow(expected); }
  /// Between passes, and nothing is under way any more. Collective after an exception.
  void wait_until_idle(const char* caller);
  /// Throws in the middle of a step.
  void check_between_steps(const char* caller) const;

  /// Bytes of all that is allocated for this model.
  int64_t allocated() const;
  ModelBytes bytes() const;
  /// With whom the arena is registered; empty: with nobody.
  std::string symmetric_report() const;
  void drop(Unit& unit) noexcept;
  ProgramStreams& streams() { return *streams_; }
  /// Who notes what happens when; nobody.
  void set_recorder(std::shared_ptr<Recorder> recorder);

 private:
  explicit Runtime(const World& world) : world_(world) {}
  void form(Unit& root);
  void find_units(Unit& root);
  void keep_parameterless_units_alive();
  Communicator* link(const Mesh& mesh, const std::string& axis, const char* purpose);
  GroupCommunicators links_of(const GroupTraits& traits);
  CallOrder default_order() const;
  /// Of the pass that is under way.
  const CallOrder& order() const { return program_->order(pass_->train); }
  void build(CallOrder order);
  void use(std::shared_ptr<const Program> program);
  /// Full parameters and gradients are allocated one by one. Without memory there is no need to.
  bool is_eager() const {
    return program_->options().memory == MemoryKind::eager && !world_.device().is_meta();
  }
  std::pair<int64_t, int64_t> arena_range() const;
  void allocate_arena(int64_t bytes);
  void bind_groups();
  double divisor() const;
  int32_t published() const;  // the event

  // passes.cpp, backward.cpp
  enum class Phase : uint8_t { resting, forward, backward };
  struct Frame {
    Unit* unit = nullptr;
    int32_t position = kNone;
    std::vector<at::Tensor> buffers;  // of a unit that the program did not foresee here
    bool unforeseen = false;
    int32_t copied_position = kNone;  // where its parameters are kept for the backward
  };
  void begin_pass(bool train, bool idle);
  void agree_on_pass(const char* what, int64_t flags);
  void agree_on_update(const char* caller);
  void end_pass();
  std::optional<size_t> find_ahead(const Unit& unit) const;
  void enter_unforeseen(Unit& unit);
  std::vector<at::Tensor> gather_unforeseen(Unit& unit);
  void leave_unforeseen(Unit& unit);
  static void show(const Frame& frame);
  void start_recording_order();
  void run_forward(size_t until);
  // observed_order.cpp
  void adopt_observed_order();
  void finish_for_following();
  void follow_others(bool block);
  bool notice_recompute(int32_t expected);
  void copy_parameters(const Frame& frame);
  void drop_copy_of_lone_call();
  void forget_calls() noexcept;
  std::vector<int64_t> call_marks(const CallOrder& order) const;
  void check_recomputes(const CallOrder& order, const std::vector<int64_t>& marks);
  void adopt_new_recomputes(const Pass& pass);

  UnitCall replay(Unit& unit);
  void hook_outputs(const UnitCall& call, std::span<const at::Tensor> outputs);
  struct Backward {
    std::mutex mutex;  // of its failure, which two threads see
    std::condition_variable ended;
    bool over = false;
  };
  class BackwardEnd;
  void fail(Backward& backward) noexcept;
  void begin_backward(const std::shared_ptr<Pass>& pass, bool idle);
  bool is_reached() const;
  bool has_trainable() const;
  std::string name_of_trainable(size_t number) const;
  std::string frozen_text(const std::vector<bool>& frozen) const;
  void run_backward(int32_t until);
  void finish_backward();
  void attach_gradients();
  void complete_step();
  void recover();
  void check_published();
  int64_t versions() const;
  std::string order_text(const CallOrder& order) const;
  CallOrder order_from(const std::string& text) const;

  // issue.cpp
  void run(const Boundary& boundary);
  void issue(const Instruction& instruction);
  void issue_on_compute(const Instruction& instruction);
  void run_on_compute(const Instruction& instruction);
  void zero_unwritten_gradients(Unit& unit);
  void take_parameters(const Instruction& instruction);
  void take_gradients(Unit& unit);
  void drop_gradients();
  void look_at_agreement(bool block);
  Watch::Moment moment() const { return {step_ + 1, backwards_done_ + 1, backward_flags_.last}; }

  World world_;
  std::vector<Unit*> units_;  // by number: inner ones first, the root last; null once gone
  std::vector<ParameterShard> shards_;
  std::vector<int32_t> parents_;
  std::map<std::pair<const Communicator*, std::string>, std::shared_ptr<Communicator>> links_;
  std::unique_ptr<Agreement> agreement_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<const Program> next_program_;  // for forwards; a backward has its forward's
  std::optional<CallOrder> evaluation_;          // of passes without gradients, if that is another
  std::unique_ptr<ProgramStreams> streams_;
  at::Tensor arena_;
  std::vector<std::unique_ptr<Window>> windows_;  // of the arena, if it is symmetric
  std::string symmetric_text_;
  std::deque<Unit*> reducing_;  // eager: whose full gradients are not given back yet

  // The step.
  int64_t micro_batches_ = 1;
  int64_t backwards_done_ = 0;  // backwards
  int64_t step_ = 0;
  int64_t passes_ = 0;                // of the step, that communicate
  bool changed_ = false;              // weights, since the last pass
  int64_t weight_version_ = 0;        // how often they were changed
  bool units_stay_gathered_ = false;  // keep_gathered units are gathered now
  bool divided_ = false;              // by the tokens
  std::vector<bool> frozen_;
  int64_t update_version_ = 0;
  std::string addresses_pinned_by_;  // why addresses may not change any more; empty: they may
  bool order_agreed_ = false;        // the order was seen, by all ranks alike
  bool program_agreed_ = false;      // the program is known to be the same on all ranks
  int64_t published_versions_ = 0;
  std::shared_ptr<Recorder> recorder_;
  std::optional<size_t> update_entry_;      // of the recorder, while the optimizer is at work
  WeightChangeDetector main_weights_seen_;  // of the main weights at the end of the last backward
  Watch watch_;
  bool report_due_ = false;
  int64_t issued_ = 0;  // collectives
  bool recovering_ = false;
  bool capturing_ = false;             // a graph, on the current stream
  bool tokens_captured_ = false;       // by the capture that is under way
  bool tokens_given_ = false;          // for the next replay
  bool gradients_incomplete_ = false;  // gradients of the step were left incomplete by an exception

  // The pass.
  Phase phase_ = Phase::resting;
  std::shared_ptr<Pass> pass_;
  const Section* section_ = nullptr;
  size_t cursor_ = 0;  // the next boundary
  BackwardFlags backward_flags_;
  bool trains_ = true;    // the backward: it brings gradients to parameters
  bool partial_ = false;  // the backward: autograd was asked for some gradients only
  std::vector<Frame> frames_;
  bool idle_ = false;
  bool follows_ = false;                       // it has no data, and others may have
  std::optional<Agreement::Record> followed_;  // what they do next
  bool recording_order_ = false;
  CallOrder observed_order_;  // once it has deviated
  int32_t entered_ = 0;       // visits of the trace that enter
  struct MadeCall {
    int32_t position = kNone;
    std::shared_ptr<const Region> recompute;  // the outermost around it
  };
  std::vector<MadeCall> made_;  // on this rank; they hold units, which hold this
  // Recomputes of this pass.
  struct SeenRecompute {
    std::shared_ptr<const Region> region;
    int32_t expected = kNone;  // the program's number of it
    bool copies = false;
  };
  std::vector<SeenRecompute> recomputes_;
  std::shared_ptr<Backward> backward_;  // the last
};

}  // namespace sherd
