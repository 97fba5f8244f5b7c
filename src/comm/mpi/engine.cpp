// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/engine.h"

#include <c10/util/Exception.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <future>
#include <sstream>
#include <utility>

#include "comm/long_wait.h"
#include "comm/time_text.h"

namespace sherd {
namespace {

constexpr auto kGrace = std::chrono::milliseconds(100);
constexpr auto kDepartureTime = std::chrono::milliseconds(500);
/// Time for other ranks to say where they are, once an operation is late.
constexpr auto kAnswerTime = std::chrono::milliseconds(1000);
constexpr size_t kMostAsked = 8;
/// After a failure all ranks are about to end: time for them to finish the transport together.
constexpr auto kFinishTime = std::chrono::milliseconds(20'000);
/// The least time for the other ranks to leave, however short an operation's limit is.
constexpr auto kLeaveTime = std::chrono::milliseconds(2'000);
/// How often a thread without operations looks for messages of other ranks.
constexpr auto kIdlePause = std::chrono::milliseconds(100);

/// Time that an idle thread keeps looking for work, and a waiter for its result, before it sleeps:
/// longer than the pause between two collectives of a chain, short beside a step.
constexpr auto kAlert = std::chrono::microseconds(60);

/// The pause between two looks at operations that have not moved for that long. Sleeping, not
/// yielding: on a busy core Linux takes each yield for a whole time slice given away, so a rank
/// that yields thousands of times hardly gets to run again.
constexpr auto kPollPause = std::chrono::microseconds(20);

}  // namespace

void Operation::wait() {
  const auto asleep = Clock::now() + kAlert;
  while (!done() && Clock::now() < asleep) sched_yield();
  if (!done()) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLongWait, [&] { return done(); })) {
      lock.unlock();
      LongWaitScope::look();
      lock.lock();
    }
  }
  if (error_) std::rethrow_exception(error_);
}

void Operation::finish(std::exception_ptr error) {
  {
    std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

Engine::Engine(std::unique_ptr<Transport> transport, Milliseconds patience)
    : remains_(std::make_unique<InFlight>(std::move(transport))),
      transport_(*remains_->transport),
      control_(remains_->control),
      patience_(std::max(patience, Milliseconds(kLeaveTime))),
      rank_(transport_.rank()),
      size_(transport_.size()) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  close();
}

void Engine::close() noexcept {
  std::call_once(closed_, [&] {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      abandoned_ = std::uncaught_exceptions() > 0;
      has_submitted_ = true;
    }
    submitted_changed_.notify_all();
    thread_.join();
    if (!failure_.empty()) {
      // Peers may still write into what broken operations posted, and MPI would wait for them:
      // leave it all to the end of the process.
      [[maybe_unused]] auto* left = remains_.release();
    }
  });
}

Work Engine::submit(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout) {
  Work work(operation);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) {
      operation->finish(std::make_exception_ptr(c10::DistBackendError(
          {__func__, __FILE__, __LINE__}, operation->scope() + "the world is closed")));
      return work;
    }
    submitted_.push_back({lane, std::move(operation), timeout, started_[lane]++});
    has_submitted_.store(true, std::memory_order_release);
  }
  submitted_changed_.notify_one();
  return work;
}

void Engine::leave_notice(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    own_notice_ = text;
    has_submitted_.store(true, std::memory_order_release);
  }
  submitted_changed_.notify_one();
}

std::map<int64_t, std::string> Engine::notices() {
  const std::lock_guard lock(mutex_);
  return notices_;
}

void Engine::run() {
  prctl(PR_SET_TIMERSLACK, 1);  // nanosecond: kPollPause is shorter than the usual slack
  auto asleep = Operation::Clock::now() + kAlert;
  while (true) {
    if (has_submitted_.load(std::memory_order_acquire)) {
      if (!take_submitted()) break;
      asleep = Operation::Clock::now() + kAlert;
    }
    const bool idle = lanes_.empty() && laneless_.empty();
    if (!idle && poll()) asleep = Operation::Clock::now() + kAlert;
    if (Operation::Clock::now() < asleep) {
      sched_yield();  // the peers may need this core to answer
    } else if (!idle) {
      std::this_thread::sleep_for(kPollPause);
    } else {
      std::unique_lock lock(mutex_);
      const bool woken =
          submitted_changed_.wait_for(lock, kIdlePause, [&] { return has_submitted_.load(); });
      lock.unlock();
      if (!woken && failure_.empty()) check_control();
    }
  }
  say_goodbye();
  if (!failure_.empty()) finish_after_failure();
}

/// Moves what was submitted into the lanes; false when the engine is to stop and nothing is left.
bool Engine::take_submitted() {
  std::lock_guard lock(mutex_);
  for (auto& active : submitted_) {
    if (active.lane == kNoLane) {
      laneless_.push_back(std::move(active));
    } else {
      lanes_[active.lane].push_back(std::move(active));
    }
  }
  submitted_.clear();
  if (!stopping_) has_submitted_ = false;
  if (!own_notice_.empty() && failure_.empty()) {
    control_.send_to_all(ControlChannel::Kind::notice, std::exchange(own_notice_, {}));
  }
  if (abandoned_ && failure_.empty()) {
    // The peers wait for what this rank will never call.
    fail(c10::str("[comm.mpi] rank ", rank_, " of ", size_, ": an exception ended it"));
    fail_all(failure_);
  }
  if (stopping_ && failure_.empty()) announce_leaving();
  return !(stopping_ && lanes_.empty() && laneless_.empty());
}

/// Advances all operations; true when one is done or nothing can go on.
bool Engine::poll() {
  bool moved = false;
  const auto finished = [&](Active& active) {
    const bool done = failure_.empty() && step(active);
    moved |= done;
    return done;
  };
  if (failure_.empty()) check_control();
  for (auto lane = lanes_.begin(); failure_.empty() && lane != lanes_.end();) {
    if (finished(lane->second.front())) lane->second.pop_front();
    lane = lane->second.empty() ? lanes_.erase(lane) : std::next(lane);
  }
  std::erase_if(laneless_, finished);
  if (!failure_.empty()) fail_all(failure_);
  return moved || !failure_.empty();
}

/// Advances one operation; true when it is done.
bool Engine::step(Active& active) {
  auto& operation = *active.operation;
  try {
    if (!active.begin) {
      active.begin = Operation::Clock::now();
      operation.start(transport_);
    }
    if (operation.advance(transport_)) {
      last_scope_ = operation.scope();
      last_end_ = Operation::Clock::now();
      operation.finish(nullptr);
      return true;
    }
    if (!departed_.empty()) check_departed(active);
    if (Operation::Clock::now() > *active.begin + active.timeout) check_time(active);
  } catch (const c10::Error& error) {
    fail(operation.scope() + error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(operation.scope() + error.what());
  }
  return false;
}

/// Throws for an operation that is late, once the ranks that it waits for have had time to say
/// where they are.
void Engine::check_time(Active& active) {
  const auto missing = active.operation->waits_for();
  const size_t asked = std::min(missing.size(), kMostAsked);
  if (!active.asked) {
    active.asked = Operation::Clock::now();
    answers_.clear();
    for (size_t i = 0; i < asked; ++i) {
      control_.send(missing[i], ControlChannel::Kind::question, "");
    }
  }
  const bool in_time = Operation::Clock::now() < *active.asked + kAnswerTime;
  if (in_time && answers_.size() < asked) return;
  std::string places;
  for (size_t i = 0; i < asked; ++i) {
    const auto answer = answers_.find(missing[i]);
    places += c10::str(
        i == 0 ? ": " : "; ", "rank ", missing[i], " ",
        answer == answers_.end() ? "does not answer" : answer->second);
  }
  TORCH_CHECK(
      false, "not done after ", in_seconds(active.timeout), "; no word from rank",
      missing.size() == 1 ? " " : "s ", c10::Join(", ", missing), places);
}

/// Throws for an operation that a rank which has left will never join.
void Engine::check_departed(const Active& active) const {
  for (const int64_t rank : active.operation->waits_for()) {
    const auto found = departed_.find(rank);
    if (found == departed_.end()) continue;
    const auto& [heard, started] = found->second;
    const auto count = started.find(active.lane);
    const bool joins =
        active.lane != kNoLane && count != started.end() && active.number < count->second;
    // Messages that it sent before it left may still be on their way.
    const auto now = Operation::Clock::now();
    if (joins || now < heard + kGrace || now < *active.begin + kGrace) continue;
    TORCH_CHECK(
        false, "rank ", rank, " has left: its process closed the world, or ended, without this ",
        "operation. All ranks must make the same calls");
  }
}

/// Looks for messages of other ranks.
void Engine::check_control() {
  try {
    while (const auto message = control_.receive()) {
      const std::string text = message->text.data();
      switch (message->kind) {
        case ControlChannel::Kind::failure:
          if (!heard_) news_ = text;
          if (!heard_) heard_ = Operation::Clock::now();
          break;
        case ControlChannel::Kind::leaving: {
          auto& departure = departed_[message->rank];
          departure.heard = Operation::Clock::now();
          std::istringstream in(text);
          int lane = 0;
          int64_t count = 0;
          while (in >> lane >> count) departure.started[lane] = count;
          break;
        }
        case ControlChannel::Kind::question:
          control_.send(message->rank, ControlChannel::Kind::answer, standing());
          break;
        case ControlChannel::Kind::answer: answers_[message->rank] = text; break;
        case ControlChannel::Kind::notice: {
          const std::lock_guard lock(mutex_);
          notices_[message->rank] = text;
          break;
        }
      }
    }
    control_.is_flushed();
    // What that rank still took part in can be completed here; only what it failed in must fail.
    if (heard_ && Operation::Clock::now() > *heard_ + kGrace) {
      failure_ = "another rank failed: " + news_;
    }
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

/// Describes the operation that this rank is in, or its last one, for error messages.
std::string Engine::standing() const {
  const auto seconds = [](Time since) {
    return in_seconds(std::chrono::duration_cast<Milliseconds>(Operation::Clock::now() - since));
  };
  const auto name = [](const std::string& scope) {
    const auto begin = scope.find(", ");
    const auto end = scope.rfind(": ");
    return begin == std::string::npos || end < begin ? scope
                                                     : scope.substr(begin + 2, end - begin - 2);
  };
  std::vector<std::string> waits;
  const auto add = [&](const Active& active) {
    if (!active.begin) return;
    waits.push_back(c10::str(name(active.operation->scope()), " for ", seconds(*active.begin)));
  };
  for (const auto& [id, lane] : lanes_) add(lane.front());
  std::for_each(laneless_.begin(), laneless_.end(), add);
  if (!waits.empty()) return "waits in " + c10::Join(", ", waits);
  if (last_scope_.empty()) return "has made no operation yet";
  return c10::str(
      "is in no operation; its last, ", name(last_scope_), ", ended ", seconds(last_end_), " ago");
}

/// Notes an error of this rank and sends it to all others.
void Engine::fail(const std::string& what) {
  failure_ = what;
  try {
    control_.send_to_all(ControlChannel::Kind::failure, what);
  } catch (const std::exception&) {
    // The transport itself is broken: the peers will notice that too.
  }
}

/// Sees messages off, for a while: they leave without the help of the ranks they go to, but not at
/// once.
void Engine::flush_control(Milliseconds limit) {
  const auto deadline = Operation::Clock::now() + limit;
  try {
    while (!control_.is_flushed() && Operation::Clock::now() < deadline) {
      std::this_thread::sleep_for(kPollPause);
    }
  } catch (const std::exception&) {
    // As above.
  }
}

/// Ends everything under way with the error.
void Engine::fail_all(const std::string& what) {
  const auto end = [&](Active& active) {
    const auto& operation = active.operation;
    const bool own = what.starts_with(operation->scope());
    const auto text = own ? what : operation->scope() + what;
    remains_->operations.push_back(operation);
    operation->finish(
        std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, text)));
  };
  for (auto& [id, lane] : lanes_) std::for_each(lane.begin(), lane.end(), end);
  std::for_each(laneless_.begin(), laneless_.end(), end);
  lanes_.clear();
  laneless_.clear();
  flush_control(kDepartureTime);  // after those who wait here have heard
}

/// Tells all ranks how many operations of each communicator this rank has started: it starts no
/// more. The caller holds the lock.
void Engine::announce_leaving() {
  if (std::exchange(announced_, true) || size_ == 1) return;
  std::string counts;
  for (const auto& [lane, count] : started_) counts += c10::str(lane, " ", count, " ");
  try {
    control_.send_to_all(ControlChannel::Kind::leaving, counts);
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

/// At the end of a healthy world: waits until every rank leaves, since finishing MPI is collective.
/// If one doesn't in time the others leave without it, and the launcher says so.
void Engine::say_goodbye() {
  const auto deadline = Operation::Clock::now() + patience_;
  while (failure_.empty() && std::ssize(departed_) < size_ - 1) {
    check_control();
    if (Operation::Clock::now() > deadline) {
      failure_ = "not all ranks have left";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the others may be long at work
  }
  if (!failure_.empty()) return;
  flush_control(kDepartureTime);
  control_.close();
  transport_.finish();
}

/// MPI takes a process for broken that ends without finishing it, and its launcher kills the
/// others, maybe before they could say what they know. All ranks have heard of the failure, or will
/// with their next operation, so they meet here; one that never comes is not waited for long.
void Engine::finish_after_failure() {
  flush_control(kDepartureTime);
  auto finished = std::make_shared<std::promise<void>>();
  auto done = finished->get_future();
  std::thread([finished, &transport = transport_] {
    transport.finish();
    finished->set_value();
  }).detach();
  done.wait_for(std::min(patience_, Milliseconds(kFinishTime)));
}

}  // namespace sherd
