// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/pass_agreement.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace sherd {

bool communicates(const Section& section) {
  return std::any_of(
      section.instructions.begin(), section.instructions.end(),
      [](const Instruction& one) { return one.stream != Stream::compute; });
}

PassAgreement::PassAgreement(
    const World& world,
    const ModelUnits& units,
    const std::vector<ParameterShard>& shards,
    StepState& state,
    const GraphState& graph,
    const BoundProgram& program,
    Watch& watch)
    : world_(world),
      units_(units),
      shards_(shards),
      state_(state),
      graph_(graph),
      program_(program),
      watch_(watch),
      records_(world) {}

void PassAgreement::begin_pass(
    const char* what,
    int64_t flags,
    const Section& section,
    const Pass& pass,
    const std::optional<RankRecords::Record>& followed) {
  if (graph_.capturing) return;  // ranks compare records around each replay
  if (!communicates(section) && program_agreed_) return;
  const int64_t number = state_.next_pass();
  const int64_t step = state_.step();
  const auto fingerprint =
      static_cast<int64_t>(program_->fingerprint() ^ std::hash<std::vector<bool>>()(state_.frozen));
  auto record = RankRecords::Record::of_pass(step, fingerprint, number, flags);
  if (followed) {
    TORCH_CHECK(
        followed->agrees_with(record), "[shard.agree] rank ", world_.rank(),
        ", which has no data, begins ", what, " as pass ", number, " of step ", step + 1,
        ", but the other ranks do something else: a rank calls ",
        "sherd::idle_pass for each pass that the others make with data");
    program_agreed_ = true;
    return;
  }
  record.has_findings = watch_.has_findings();
  record.new_recomputes = !pass.new_recomputes.empty();
  record.new_exchanges = !pass.exchanges.empty();
  records_.start(
      record, [this, program = program_.shared(), step, number, what, frozen = state_.frozen] {
        return c10::str(
            "begins ", what, " as pass ", number, " of step ", step + 1,
            "\nfrozen since sharding: ", names_of_frozen(shards_, frozen), "\n", program->facts());
      });
  // Unknown programs are compared before anything else is sent.
  if (!program_agreed_) records_.check(/*block=*/true);
  program_agreed_ = true;
}

void PassAgreement::call_unforeseen(const Unit& unit, int64_t issued) {
  const auto words =
      c10::str("calls unit '", unit.name(), "' where the program does not expect it");
  records_.start(
      RankRecords::Record::of_unforeseen_call(issued, unit.name(), unit.number()),
      [words] { return words; });
  records_.check(/*block=*/true);
}

/// On CPU what follows blocks: ranks would wait in it for one that skips the update. On CUDA the
/// host goes on, and learns of it at the next pass.
void PassAgreement::begin_update(const char* caller) {
  if (!world_.device().is_cpu() || world_.size() == 1) return;
  const int64_t step = state_.step();
  records_.start(RankRecords::Record::of_update(step, caller), [caller, step] {
    return c10::str("calls ", caller, " in step ", step + 1);
  });
  records_.check(/*block=*/true);
}

int64_t PassAgreement::recover(const Executor& executor) {
  const int64_t issued = executor.issued();
  const bool catches_up = !world_.device().is_cuda();
  const auto record = RankRecords::Record::of_recovery(
      catches_up ? executor.issued_outside() : issued, executor.section(), state_.backwards_done());
  const auto words = [&executor, issued, root = units_.root().name()] {
    return c10::str(
        "goes on after an exception in '", root, "', with ", issued,
        " collectives behind it\nsection: ", executor.section(),
        "\ncollectives before it: ", executor.issued_outside());
  };
  const auto followed = records_.take_followed_recovery();
  if (!followed) {
    records_.check(/*block=*/true);
    records_.start(record, words);
    records_.check(/*block=*/true);
  }
  const int64_t furthest = catches_up ? records_.max_of({issued}).front() : issued;
  // The others have agreed among themselves already, and learn of this in their next record.
  TORCH_CHECK(
      !followed || followed->agrees_with(record), "[shard.agree] rank ", world_.rank(),
      ", which had no data, ", words(),
      "\nThe other ranks go on after an exception in another section");
  return furthest;
}

void PassAgreement::await_record() {
  if (records_.is_open() && !records_.is_following()) records_.check(/*block=*/true);
}

}  // namespace sherd
