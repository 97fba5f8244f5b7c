// SPDX-License-Identifier: Apache-2.0
#include "shard/rank_records.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "comm/flight/flight_ring.h"
#include "comm/host_exchange.h"
#include "comm/long_wait.h"
#include "comm/streams.h"

namespace sherd {
namespace {

// Note [Records are reduced]
// Each field that must be equal is sent twice, as it is and with all bits inverted, and each rank
// gets the largest of both: the field's largest value and, inverted again, its smallest.
// They are the same if and only if all ranks said the same. A field without a value is the least
// number in both places, which changes neither. The flags follow: one rank's is enough.
enum Field : size_t { kKind, kNumber, kHash, kDetail, kCompared };
enum Flag : size_t { kFindings = 2 * kCompared, kNewRecomputes, kNewExchanges, kValues };
constexpr int64_t kNoValue = std::numeric_limits<int64_t>::min();

/// The copy of the records to the host, on the side stream.
class HostCopy final : public Work::State {
 public:
  HostCopy(c10::Stream stream, Work work) : end_(stream.device_type()), work_(std::move(work)) {
    end_.record(stream);
  }
  void wait() override { synchronize(); }
  void synchronize() override {
    while (!done()) std::this_thread::yield();
  }
  bool done() override {
    work_.done();  // throws what went wrong
    return end_.query();
  }

 private:
  c10::Event end_;
  Work work_;
};

/// The first rank on one side, and the first on the other that says something else.
struct FirstOfSides {
  std::optional<Statement> one;
  std::optional<Statement> other;

  bool are_known() const { return one && other; }
  void add(bool on_one_side, bool on_the_other, Statement statement) {
    if (on_one_side && !one) {
      one = std::move(statement);
    } else if (on_the_other && !other && !(one && one->text == statement.text)) {
      other = std::move(statement);
    }
  }
};

}  // namespace

RankRecords::RankRecords(const World& world)
    : world_(world), communicator_(world.communicator("control")) {
  const auto device = world.device();
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const bool cuda = device.is_cuda();
  std::optional<c10::StreamGuard> guard;  // the record is written where it is sent
  if (cuda) {
    stream_ = control_stream(device);
    guard.emplace(*stream_);
  }
  record_ = at::zeros({kValues}, options);
  const auto host = at::TensorOptions().dtype(at::kLong).pinned_memory(cuda);
  host_record_ = cuda ? at::empty({kValues}, host) : record_;
}

void RankRecords::start(const Record& record, Words words) {
  if (world_.device().is_meta()) return;
  check(/*block=*/true);
  kind_ = record.kind;
  words_ = std::move(words);
  follows_ = false;
  auto* values = host_record_.mutable_data_ptr<int64_t>();
  const auto set = [&](Field field, int64_t value) {
    values[2 * field] = value;
    values[2 * field + 1] = ~value;
  };
  set(kKind, static_cast<int64_t>(record.kind));
  set(kNumber, record.number);
  set(kHash, record.hash.value_or(0));
  set(kDetail, record.detail);
  if (!record.hash) values[2 * kHash] = values[2 * kHash + 1] = kNoValue;
  values[kFindings] = record.has_findings;
  values[kNewRecomputes] = record.new_recomputes;
  values[kNewExchanges] = record.new_exchanges;
  send();
}

void RankRecords::start_following(bool has_findings) {
  check(/*block=*/true);
  kind_ = Kind::pass;
  words_ = [] { return std::string("has no data, and follows the others"); };
  follows_ = true;
  auto* values = host_record_.mutable_data_ptr<int64_t>();
  std::fill_n(values, 2 * kCompared, kNoValue);
  values[kFindings] = has_findings;
  values[kNewRecomputes] = 1;  // its own order is no longer known to be that of all
  values[kNewExchanges] = 0;
  send();
}

std::optional<RankRecords::Record> RankRecords::followed() {
  check(/*block=*/true);
  if (largest(kKind) == kNoValue) return std::nullopt;
  const Record record{
      .kind = static_cast<Kind>(largest(kKind)),
      .number = largest(kNumber),
      .hash = largest(kHash),
      .detail = largest(kDetail)};
  if (record.kind == Kind::recovery) followed_recovery_ = record;
  return record;
}

std::optional<RankRecords::Record> RankRecords::take_followed_recovery() {
  if (is_following()) followed();
  return std::exchange(followed_recovery_, std::nullopt);
}

/// Reduces what the host has written.
void RankRecords::send() {
  const auto* values = host_record_.const_data_ptr<int64_t>();
  sent_.assign(reinterpret_cast<const char*>(values), kValues * sizeof(int64_t));
  if (!stream_) {
    work_ = communicator_.all_reduce(record_, Reduction::max());
  } else {
    // On a stream of its own: it has nothing to do with what the device computes.
    const c10::StreamGuard guard(*stream_);
    record_.copy_(host_record_, /*non_blocking=*/true);
    auto reduced = communicator_.all_reduce(record_, Reduction::max(), stream_);
    host_record_.copy_(record_, /*non_blocking=*/true);
    work_ = Work(std::make_shared<HostCopy>(*stream_, std::move(reduced)));
  }
  open_ = true;
}

/// Blocks until all ranks have sent their records, as long as an operation may take. Where this
/// rank does what the others may not, the error says what that is.
void RankRecords::wait() {
  if (kind_ == Kind::pass || kind_ == Kind::order) return work_.synchronize();
  const auto explain = [&](const char* error) {
    TORCH_CHECK_WITH(
        DistBackendError, false, "[shard.agree] rank ", world_.rank(), " ", line_of(words_(), 0),
        ", and waited for the other ranks to do the same: ", error);
  };
  try {
    work_.synchronize();
  } catch (const c10::Error& error) {
    explain(error.what_without_backtrace());
  } catch (const std::exception& error) {
    explain(error.what());
  }
}

int64_t RankRecords::largest(size_t field) const {
  return host_record_.const_data_ptr<int64_t>()[2 * field];
}

bool RankRecords::agrees(size_t field) const {
  const int64_t turned = host_record_.const_data_ptr<int64_t>()[2 * field + 1];
  return largest(field) == ~turned || largest(field) == kNoValue;
}

void RankRecords::check(bool block) {
  if (!open_ || (!block && !work_.done())) return;
  wait();
  open_ = false;
  const auto* values = host_record_.const_data_ptr<int64_t>();
  any_findings_ = any_findings_ || values[kFindings] != 0;
  new_recomputes_ = new_recomputes_ || values[kNewRecomputes] != 0;
  new_exchanges_ = new_exchanges_ || values[kNewExchanges] != 0;
  for (size_t field = 0; field < kCompared; ++field) {
    if (!agrees(field)) refuse(!follows_, !follows_, sent_, words_());
  }
}

// Note [Words on a stream of their own]
// The current stream may wait for a collective that another rank never joins, so what ranks tell
// each other is sent on the records' stream.
std::vector<int64_t> RankRecords::max_of(const std::vector<int64_t>& values) {
  const c10::OptionalStreamGuard guard(stream_);
  return max_over(communicator_, world_.device(), values);
}

std::vector<Statement> RankRecords::collect(const std::string& text, size_t most) {
  const c10::OptionalStreamGuard guard(stream_);
  return sherd::collect(communicator_, world_.device(), text, most);
}

void RankRecords::refuse(bool on_one_side, bool on_the_other, const std::string& words) {
  refuse(on_one_side, on_the_other, "", words);
}

/// Ranks differ in the records that they `sent`, or in words that say more.
void RankRecords::refuse(
    bool on_one_side, bool on_the_other, const std::string& sent, const std::string& words) {
  // All ranks exchange their words to the end, whatever one of them has given up.
  static const std::function<void()> look_at_nothing = [] {};
  const LongWaitScope undisturbed(look_at_nothing);
  const auto mine = sent + words;
  const auto difference = [&](Statement one, Statement other) {
    if (one.rank > other.rank) std::swap(one, other);
    return difference_of(
        {one.rank, one.text.substr(sent.size())}, {other.rank, other.text.substr(sent.size())});
  };
  std::string text;
  if (auto* exchange = dynamic_cast<HasHostExchange*>(&communicator_)) {
    FirstOfSides sides;
    const auto given = c10::str(int{on_one_side}, int{on_the_other}, mine);
    text = exchange->decide_on_host(given, [&](int64_t rank, const std::string& said) {
      sides.add(said[0] == '1', said[1] == '1', {rank, said.substr(2)});
      return sides.are_known() ? std::optional(difference(*sides.one, *sides.other)) : std::nullopt;
    });
  } else {
    auto& communicator = communicator_;
    const auto device = world_.device();
    const auto one = lowest_rank(communicator, device, on_one_side).value_or(0);
    const auto first = text_of(communicator, device, one, mine);
    const bool differs = on_the_other && mine != first;
    const auto other = lowest_rank(communicator, device, differs).value_or(0);
    text = difference({one, first}, {other, text_of(communicator, device, other, mine)});
  }
  if (auto* ring = FlightRing::current()) ring->mark(flight::Reason::error, text);
  TORCH_CHECK(
      false, "[shard.agree] ", text, ". (This is rank ", world_.rank(),
      ".) All ranks must shard the same units in the same order, with the same options and number "
      "of micro-batches, and call them alike; a rank without data calls sherd::idle_pass");
}

std::string RankRecords::agree_on_order(
    Record record, const char* what, const std::string& order, bool idle, bool has_followed) {
  if (world_.device().is_meta()) return order;
  const int64_t hash = hash_of(order);
  if (!has_followed) {
    record.hash = idle ? std::nullopt : std::optional(hash);
    start(record, [what, order] { return std::string(what) + "\n" + order; });
    check(/*block=*/true);
  }
  if (host_record_.const_data_ptr<int64_t>()[kNewRecomputes] == 0) return order;
  const c10::OptionalStreamGuard guard(stream_);
  // Ranks without data had only the order of the program to go by.
  const auto leader = lowest_rank(communicator_, world_.device(), !idle);
  if (!leader || max_of({largest(kHash) != hash}).front() == 0) return order;
  return text_of(communicator_, world_.device(), *leader, order);
}

}  // namespace sherd
