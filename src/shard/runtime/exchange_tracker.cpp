// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/exchange_tracker.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "comm/flight/flight_ring.h"
#include "comm/long_wait.h"
#include "shard/rank_texts.h"
#include "shard/region.h"
#include "shard/unit/unit.h"

namespace sherd {
namespace {

/// Returns a number for what ranks must agree on.
uint64_t hash_of(const ExchangeCall& call, ExchangePass pass, int32_t unit) {
  size_t hash = c10::get_hash(static_cast<int>(call.kind), static_cast<int>(pass), unit);
  for (const auto& tensor : call.tensors) {
    hash = c10::hash_combine(hash, static_cast<size_t>(tensor.scalar_type()));
    for (const int64_t size : call.agreed_sizes(tensor)) {
      hash = c10::hash_combine(hash, static_cast<size_t>(size));
    }
  }
  return hash;
}

/// Calls a function that compares, and adds to the errors of communication what for.
template <class F>
auto with_words(const std::string& words, const F& compare) {
  try {
    return compare();
  } catch (c10::Error& error) {
    error.add_context(c10::str(
        "while this rank compared with the others that it ", words,
        ". They may do something else: all ranks along an axis make the same exchanges"));
    throw;
  }
}

}  // namespace

ExchangeTracker::ExchangeTracker(
    const World& world,
    const GraphState& graph,
    const BoundProgram& program,
    Abandonment& abandonment)
    : world_(world),
      graph_(graph),
      program_(program),
      abandonment_(abandonment),
      look_function_([this] { look(); }) {}

void ExchangeTracker::begin(const std::shared_ptr<Pass>& pass, Section::Kind kind) {
  pass_ = pass;
  ++passes_;
  kind_ = kind == Section::Kind::backward ? kBackward : pass->train ? kTraining : kEvaluation;
  inside_.clear();
  wait_ = {};
  for (const auto& line : lines_) {
    line->made.clear();
    line->compares = false;
  }
}

void ExchangeTracker::enter(int32_t position, const Unit& unit) {
  inside_.push_back({position, &unit});
}

void ExchangeTracker::enter_backward(int32_t position, const Unit& unit) {
  inside_.assign(1, {position, &unit});
}

void ExchangeTracker::end() {
  const LongWaitScope scope(look_function_);
  for (const auto& line : lines_) {
    auto& known = line->known[kind_];
    line->compares = line->compares || line->made.size() < known.size();
    if (!line->compares) continue;
    wait_ = {line.get(), line->made.size(), nullptr};
    compare(*line, words_of(wait_));
    known = std::move(line->made);
  }
  wait_ = {};
  pass_.reset();
  inside_.clear();
}

void ExchangeTracker::forget() noexcept {
  wait_ = {};
  lines_.clear();
  pass_.reset();
  inside_.clear();
}

void ExchangeTracker::run(const ExchangeCall& call, c10::function_ref<void()> send) {
  const bool seen = pass_ && !inside_.empty();
  if (!seen && call.is_meta()) return;
  if (!seen) return send();
  const LongWaitScope scope(look_function_);
  const auto done = c10::make_scope_exit([this] { wait_ = {}; });
  record(call);
  if (call.is_meta()) return;
  follow(call);
  const auto flight_entry = record_flight(call);
  if (const auto& recorder = program_.recorder()) {
    const auto number =
        recorder->begin_exchange(call.kind, inside_.back().unit->number(), call.bytes);
    send();
    recorder->end(number, {});
  } else {
    send();
  }
  if (auto* ring = FlightRing::current()) ring->end(flight_entry);
}

/// Adds an exchange that is about to be made to the flight recorder.
uint64_t ExchangeTracker::record_flight(const ExchangeCall& call) const {
  auto* ring = FlightRing::current();
  if (!ring) return 0;
  return ring->add(
      {.type = flight::Type::exchange,
       .kind = static_cast<uint8_t>(call.kind),
       .name = ring->name(inside_.back().unit->name()),
       .bytes = call.bytes});
}

/// Called while this rank has waited long. Other ranks may have given up, or one compares what the
/// others don't.
void ExchangeTracker::look() {
  abandonment_.check();
  if (!wait_.line) return;
  const auto& line = *wait_.line;
  const auto name = c10::str(line.communicator->name(), " along ", line.axis, ", ", passes_);
  if (line.compares) return abandonment_.announce_comparison(name, wait_.number, words_of(wait_));
  const auto other = abandonment_.comparison(line.world_ranks, name, wait_.number);
  TORCH_CHECK(
      !other, "[shard.agree] rank ", world_.rank(), " and rank ", other->first,
      " of the world do not exchange the same along '", line.axis, "'. Rank ", other->first, ": ",
      other->second, ", which is another one than in its last pass. Rank ", world_.rank(), ": ",
      words_of(wait_),
      ", as in its last pass. All ranks along an axis make the same exchanges in "
      "the same units, in the same order and with the same shapes");
}

ExchangePass ExchangeTracker::pass_kind() const {
  if (kind_ != kBackward) return ExchangePass::forward;
  return replayed_region() ? ExchangePass::recompute : ExchangePass::backward;
}

/// For the program, if it does not know them.
void ExchangeTracker::record(const ExchangeCall& call) {
  if (!pass_->records_exchanges) return;
  pass_->exchanges[inside_.back().position].push_back(
      {call.kind, pass_kind(), call.axis, call.purpose, call.communicator->size(), call.bytes,
       call.routed});
}

ExchangeTracker::Line& ExchangeTracker::line_of(const ExchangeCall& call) {
  for (const auto& line : lines_) {
    if (line->communicator == call.communicator) return *line;
  }
  auto line = std::make_unique<Line>();
  line->communicator = call.communicator;
  line->owner = call.owner;
  line->axis = call.axis;
  line->world_ranks.assign(call.world_ranks.begin(), call.world_ranks.end());
  return *lines_.emplace_back(std::move(line));
}

/// Goes on in the known sequence, or compares.
void ExchangeTracker::follow(const ExchangeCall& call) {
  // The ranks of an emulated world are imagined.
  if (world_.launcher() == Launcher::emulated) return;
  auto& line = line_of(call);
  const auto& known = line.known[kind_];
  const size_t number = line.made.size();
  const auto hash = hash_of(call, pass_kind(), inside_.back().unit->number());
  line.compares = line.compares || number >= known.size() || known[number] != hash;
  wait_ = {&line, number, &call};
  if (line.compares) {
    compare(line, words_of(wait_));
    if (!call.sent.empty()) compare_counts(line, call);
  }
  line.made.push_back(hash);
}

void ExchangeTracker::compare(const Line& line, const std::string& words) const {
  TORCH_CHECK(
      !graph_.capturing, "[shard.agree] rank ", world_.rank(), " ", words,
      ", under the capture of a graph, which no step before had along '", line.axis,
      "': run a step of the same shapes without the graph first");
  auto& communicator = *line.communicator;
  const auto sides =
      with_words(words, [&] { return differing_texts(communicator, world_.device(), words); });
  if (!sides) return;
  const auto& [one, other] = *sides;
  TORCH_CHECK(
      false, "[shard.agree] rank ", one.rank, " and rank ", other.rank, " along '", line.axis,
      "' do not exchange the same. Rank ", one.rank, ": ", one.text, ". Rank ", other.rank, ": ",
      other.text, ". (This is rank ", communicator.rank(), ", rank ", world_.rank(),
      " of the world.) All ranks along an axis make the same exchanges in the same units, in the "
      "same order and with the same shapes");
}

/// Each rank asks the others how many rows they send to it.
void ExchangeTracker::compare_counts(const Line& line, const ExchangeCall& call) const {
  auto& communicator = *line.communicator;
  const auto device = world_.device();
  const auto words = words_of(wait_);
  const auto wrong = with_words(words, [&] {
    auto going = at::empty({std::ssize(call.sent)}, at::kLong);
    std::copy(call.sent.begin(), call.sent.end(), going.mutable_data_ptr<int64_t>());
    going = going.to(device);
    const auto coming = at::empty_like(going);
    communicator.all_to_all(coming, going).synchronize();
    const auto counts = coming.cpu();
    const auto* first = counts.const_data_ptr<int64_t>();
    std::string mine;
    for (size_t rank = 0; rank < call.received.size() && mine.empty(); ++rank) {
      if (first[rank] == call.received[rank]) continue;
      mine = c10::str(
          words, ", and expects ", call.received[rank], " rows of rank ", rank, ", which sends ",
          first[rank]);
    }
    return collect(communicator, device, mine, 1);
  });
  TORCH_CHECK(
      wrong.empty(), "[shard.agree] rank ", wrong.front().rank, " along '", line.axis, "' ",
      wrong.front().text, ". (This is rank ", communicator.rank(), ", rank ", world_.rank(),
      " of the world.) Exchange the counts first: Exchange::exchange_counts");
}

std::string ExchangeTracker::words_of(const Wait& wait) const {
  std::ostringstream out;
  if (!wait.call) {
    out << "ends its " << name_of_pass() << " after " << wait.number << " exchanges";
    return out.str();
  }
  const auto& call = *wait.call;
  out << "makes exchange " << wait.number + 1 << " of its " << name_of_pass()
      << (pass_kind() == ExchangePass::recompute ? ", in a recompute" : "") << ", in unit '"
      << inside_.back().unit->name() << "': " << to_text(call.kind) << " for '" << call.purpose
      << "' of";
  for (const auto& tensor : call.tensors) {
    out << ' ' << tensor.scalar_type() << ' ' << call.agreed_sizes(tensor);
  }
  out << (call.kind == ExchangeKind::all_to_all ? " rows" : "");
  return out.str();
}

const char* ExchangeTracker::name_of_pass() const {
  switch (kind_) {
    case kTraining: return "forward with gradients";
    case kEvaluation: return "forward without gradients";
    default: return "backward";
  }
}

}  // namespace sherd
