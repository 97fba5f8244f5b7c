// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shard/rank_texts.h"
#include "sherd/comm/world.h"

namespace sherd {

/// The records by which ranks tell each other what they do, on a communicator of their own: one at
/// the start of each pass that communicates, and whenever something unforeseen happens.
/// PassAgreement and OrderAgreement decide when one is sent and what it says. The records are
/// reduced (the largest and the smallest value of each field), so that their size does not grow
/// with the world. Ranks whose records differ learn it all at once, exchange what they know in
/// words, and throw an error that names both sides.
class RankRecords {
 public:
  enum class Kind : int64_t { pass, order, unforeseen, recovery, report, update };
  /// The present action of a rank. The functions say what the fields are for each kind.
  struct Record {
    Kind kind{};
    int64_t number = 0;             ///< must be equal: of the step, or of collectives so far
    std::optional<int64_t> hash{};  ///< must be equal on all ranks that have one
    int64_t detail = 0;             ///< must be equal: the pass, or the unit
    bool has_findings = false;      ///< the rank has findings to report; ranks may differ
    bool new_recomputes = false;    ///< the rank recomputed what the program does not expect
    bool new_exchanges = false;     ///< the rank has recorded exchanges for the program

    /// A pass begins: the `pass`-th of the step that communicates. `flags` are below 256.
    static Record of_pass(int64_t step, int64_t fingerprint, int64_t pass, int64_t flags) {
      return {Kind::pass, step, fingerprint, pass << 8 | flags};
    }
    /// A unit is called that the program does not expect, after `issued` collectives.
    static Record of_unforeseen_call(int64_t issued, const std::string& name, int32_t unit) {
      return {Kind::unforeseen, issued, hash_of(name), unit + 1};
    }
    /// A forward has ended that calls units for the first time.
    static Record of_first_order() { return {Kind::order}; }
    /// A forward has ended that went another way than the program, after `issued` collectives.
    static Record of_new_order(int64_t issued) { return {Kind::unforeseen, issued}; }
    /// A rank goes on after an exception in `section`. `issued`: its collectives, on CPU those
    /// before the section.
    static Record of_recovery(int64_t issued, const std::string& section, int64_t backwards_done) {
      return {Kind::recovery, issued, hash_of(section), backwards_done};
    }
    /// Findings are collected.
    static Record of_report(int64_t step) { return {Kind::report, step, 0}; }
    /// The update begins.
    static Record of_update(int64_t step, const std::string& caller) {
      return {Kind::update, step, hash_of(caller)};
    }

    /// Returns the number of the unit of an unforeseen call; none for other records.
    std::optional<int32_t> unforeseen_unit() const {
      if (kind != Kind::unforeseen || detail == 0) return std::nullopt;
      return static_cast<int32_t>(detail - 1);
    }
    /// Returns whether the fields that must be equal are, kinds aside.
    bool agrees_with(const Record& other) const {
      return number == other.number && hash == other.hash && detail == other.detail;
    }
  };
  /// What a rank says of itself where records differ: a line for the kind, then facts, one a line.
  using Words = std::function<std::string()>;

  /// Collective.
  explicit RankRecords(const World& world);

  /// Sends this rank's record; one at a time.
  void start(const Record& record, Words words);
  /// Throws if the records are there and differ. Without `block` it returns at once if they are
  /// not; with it, it waits, at most as long as an operation may take.
  void check(bool block);
  /// On the device; the same in a world of any size.
  int64_t bytes() const { return static_cast<int64_t>(record_.nbytes()); }
  bool is_open() const { return open_; }
  /// Whether a rank had findings in a record that was checked since last asked. All ranks that have
  /// checked the same records get the same answer.
  bool take_findings_flag() { return std::exchange(any_findings_, false); }
  /// The same for recomputes that the program does not expect.
  bool take_new_recomputes() { return std::exchange(new_recomputes_, false); }
  /// The same for exchanges that were recorded for the program.
  bool take_new_exchanges() { return std::exchange(new_exchanges_, false); }

  /// For a rank without data: joins the next record of the others, whatever it says. Only
  /// `has_findings` is this rank's own.
  void start_following(bool has_findings);
  bool is_following() const { return open_ && follows_; }
  /// Whether the record that was sent or followed last is there.
  bool arrived() { return work_.done(); }
  /// Returns the record that was followed; none if no rank has data. Blocks.
  std::optional<Record> followed();
  /// Returns the recovery of the other ranks if that is what this rank has followed them to; then
  /// it is forgotten. Blocks until the record that is followed now is there.
  std::optional<Record> take_followed_recovery();

  /// Returns everybody's order of units: that of the ranks with data, which must be the same. A
  /// rank that has followed the others to their record sends none. Blocks.
  std::string agree_on_order(
      Record record, const char* what, const std::string& order, bool idle, bool has_followed);
  /// Returns the largest of the ranks' values, one by one. Blocks.
  std::vector<int64_t> max_of(const std::vector<int64_t>& values);
  /// Throws on all ranks the words of the first rank on one side and of the first on the other. All
  /// ranks call it; a rank may be on neither side.
  [[noreturn]] void refuse(bool on_one_side, bool on_the_other, const std::string& words);
  /// See sherd::collect.
  std::vector<Statement> collect(const std::string& text, size_t most);

 private:
  void send();
  void wait();
  int64_t largest(size_t field) const;
  bool agrees(size_t field) const;
  [[noreturn]] void refuse(
      bool on_one_side, bool on_the_other, const std::string& sent, const std::string& words);

  World world_;
  Communicator& communicator_;
  at::Tensor record_;  // on the device, and beside it where the host can read and write
  at::Tensor host_record_;
  Communicator::OnStream stream_;
  Work work_;
  Kind kind_{};
  std::string sent_;      // this rank's record as bytes
  bool follows_ = false;  // it agrees with all others
  std::optional<Record> followed_recovery_;
  Words words_;
  bool open_ = false;
  bool any_findings_ = false;
  bool new_recomputes_ = false;
  bool new_exchanges_ = false;
};

}  // namespace sherd
