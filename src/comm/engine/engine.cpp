// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/engine.h"

#include <c10/util/Exception.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <future>
#include <utility>

#include "comm/flight/flight_ring.h"

namespace sherd {
namespace {

/// How long messages to other ranks may take to leave this one.
constexpr auto kFlushTime = std::chrono::milliseconds(500);
/// After a failure all ranks are about to end: time for them to finish the transport together.
constexpr auto kFinishTime = std::chrono::milliseconds(20'000);
/// The least time for the other ranks to leave, however short an operation's limit is.
constexpr auto kLeaveTime = std::chrono::milliseconds(2'000);
/// How long operations may go on without one being done once all ranks leave.
constexpr auto kLastOperationsTime = std::chrono::milliseconds(3'000);
/// How often a thread without operations looks for messages of other ranks.
constexpr auto kIdlePause = std::chrono::milliseconds(100);

/// The pause between two looks at operations that have not moved for Operation::kSpinTime.
/// Sleeping, not yielding: on a busy core Linux takes each yield for a whole time slice given away,
/// so a rank that yields thousands of times hardly gets to run again.
constexpr auto kPollPause = std::chrono::microseconds(20);

}  // namespace

Engine::Engine(std::unique_ptr<Transport> transport, Milliseconds patience)
    : in_flight_(std::make_unique<InFlight>(std::move(transport))),
      transport_(*in_flight_->transport),
      peers_(in_flight_->peers),
      patience_(std::max(patience, Milliseconds(kLeaveTime))),
      rank_(transport_.rank()),
      size_(transport_.size()) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  leave();
}

void Engine::leave() noexcept {
  std::call_once(left_, [&] {
    submissions_.stop(/*by_exception=*/std::uncaught_exceptions() > 0);
    thread_.join();
    if (!failure_.empty()) {
      // Peers may still write into what broken operations posted, and MPI would wait for them:
      // leave it all to the end of the process.
      [[maybe_unused]] auto* leaked = in_flight_.release();
    }
  });
}

Work Engine::submit(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout) {
  Work work(operation);
  submissions_.add(lane, std::move(operation), timeout);
  return work;
}

void Engine::leave_notice(const std::string& text) {
  peers_.notices().set_own(text);
  submissions_.wake();
}

void Engine::run() {
  prctl(PR_SET_TIMERSLACK, 1);  // nanosecond: kPollPause is shorter than the usual slack
  auto asleep = Operation::Clock::now() + Operation::kSpinTime;
  while (true) {
    if (auto* ring = FlightRing::current()) ring->beat();
    if (submissions_.any()) {
      if (!take_submissions()) break;
      asleep = Operation::Clock::now() + Operation::kSpinTime;
    }
    const bool idle = lanes_.empty();
    if (!idle && poll()) asleep = Operation::Clock::now() + Operation::kSpinTime;
    if (Operation::Clock::now() < asleep) {
      sched_yield();  // the peers may need this core to answer
    } else if (!idle) {
      std::this_thread::sleep_for(kPollPause);
    } else if (!submissions_.wait(kIdlePause) && failure_.empty()) {
      read_news();
    }
  }
  if (failure_.empty()) finish_together();
  if (!failure_.empty()) finish_after_failure();
}

/// Moves what was submitted into the lanes; false when the engine is to stop and nothing is left.
bool Engine::take_submissions() {
  const auto end = submissions_.take(lanes_);
  if (end.by_exception && failure_.empty()) {
    // The peers wait for what this rank will never call.
    fail(scope() + "an exception ended it" + peers_.text_of_hosts({rank_}));
    fail_operations();
  }
  if (failure_.empty()) {
    try {
      peers_.send_notice();
      if (end.stopped) peers_.announce_leaving(submissions_);
      leaving_ = end.stopped;
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
  }
  return !(end.stopped && lanes_.empty());
}

/// Advances all operations; true when one is done or nothing can go on.
bool Engine::poll() {
  if (failure_.empty()) read_news();
  const bool moved =
      lanes_.remove_done([&](LaneEntry& entry) { return failure_.empty() && advance(entry); });
  if (failure_.empty()) check_last_operations(moved);
  if (!failure_.empty()) fail_operations();
  return moved || !failure_.empty();
}

/// Gives up what is under way while all ranks leave, if it does not end: ranks that went on after
/// an error may have left operations behind that do not match, and no thread waits for them.
void Engine::check_last_operations(bool moved) {
  if (!leaving_ || !peers_.all_have_left()) return;
  const auto now = Operation::Clock::now();
  if (moved || !last_moved_) last_moved_ = now;
  if (now > *last_moved_ + kLastOperationsTime) {
    failure_ = scope() + "all ranks have left, and have not made the same operations before";
  }
}

/// Starts an operation, or moves it on; true when it is complete.
bool Engine::move(LaneEntry& entry) {
  auto& operation = *entry.operation;
  try {
    if (!entry.begin) {
      entry.begin = Operation::Clock::now();
      if (auto* ring = FlightRing::current()) ring->start(operation.flight_entry());
      operation.start(transport_);
    }
    return operation.advance(transport_);
  } catch (const c10::Error& error) {
    // It may name one of the ranks that it was about to exchange messages with.
    const auto hosts = peers_.text_of_hosts(operation.waits_for());
    if (hosts.empty()) throw;
    TORCH_CHECK(false, error.what_without_backtrace(), hosts);
  }
}

/// Advances one operation; true when it is done.
bool Engine::advance(LaneEntry& entry) {
  auto& operation = *entry.operation;
  try {
    if (move(entry)) {
      if (auto* ring = FlightRing::current()) ring->end(operation.flight_entry());
      operation.finish(nullptr);
      return true;
    }
    peers_.check_departed(entry);
    if (Operation::Clock::now() > *entry.begin + entry.timeout) peers_.check_late(entry);
  } catch (const c10::Error& error) {
    late_ = entry.peers_asked_since.has_value();
    fail(operation.scope() + error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(operation.scope() + error.what());
  }
  return false;
}

/// Reads the other ranks' messages; one of them may be a failure.
void Engine::read_news() {
  try {
    peers_.receive(lanes_);
    if (const auto error = peers_.failure()) {
      failure_ = "another rank failed: " + *error;
    } else if (const auto loss = peers_.loss()) {
      failure_ = *loss;
      peers_.announce_failure(scope() + *loss);  // others may still be connected to that rank
    }
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

/// Returns the beginning of errors that belong to no operation.
std::string Engine::scope() const {
  return c10::str("[comm.", backend(), "] rank ", rank_, " of ", size_, ": ");
}

/// Notes an error of this rank and sends it to all others.
void Engine::fail(const std::string& error) {
  failure_ = error;
  peers_.announce_failure(error);
}

/// Ends everything under way with the error.
void Engine::fail_operations() {
  if (auto* ring = FlightRing::current())
    ring->mark(late_ ? flight::Reason::time_limit : flight::Reason::error, failure_);
  for (auto& operation : lanes_.fail_all(failure_)) {
    in_flight_->failed_operations.push_back(std::move(operation));
  }
  peers_.flush(kFlushTime);  // after the threads that wait here have the error
}

/// At the end of a healthy world: waits until every rank leaves, since finishing MPI is collective.
/// If one doesn't in time the others leave without it, and the launcher says so.
void Engine::finish_together() {
  const auto deadline = Operation::Clock::now() + patience_;
  while (failure_.empty() && !peers_.all_have_left()) {
    read_news();
    if (Operation::Clock::now() > deadline) failure_ = "not all ranks have left";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the others may be long at work
  }
  if (!failure_.empty()) return;
  peers_.flush(kFlushTime);
  peers_.close();
  transport_.finish();
}

/// MPI takes a process for broken that ends without finishing it, and its launcher kills the
/// others, maybe before they could say what they know. All ranks have heard of the failure, or will
/// with their next operation, so they meet here; one that never comes is not waited for long.
void Engine::finish_after_failure() {
  peers_.flush(kFlushTime);
  auto finished = std::make_shared<std::promise<void>>();
  auto done = finished->get_future();
  std::thread([finished, &transport = transport_] {
    transport.finish();
    finished->set_value();
  }).detach();
  done.wait_for(std::min(patience_, Milliseconds(kFinishTime)));
}

}  // namespace sherd
