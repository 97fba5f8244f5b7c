// SPDX-License-Identifier: Apache-2.0
#include "comm/engine.h"

#include <c10/util/Exception.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "comm/operations.h"
#include "comm/time_text.h"

namespace sherd {
namespace {

constexpr int kControlTag = 0;
constexpr auto kGrace = std::chrono::milliseconds(100);
constexpr auto kFarewellTime = std::chrono::milliseconds(500);

/// Time that an idle thread keeps looking for work, and a waiter for its result, before it sleeps:
/// longer than the pause between two collectives of a chain, short beside a step.
constexpr auto kAlert = std::chrono::microseconds(60);

}  // namespace

void Operation::wait() {
  const auto asleep = Clock::now() + kAlert;
  while (!done() && Clock::now() < asleep) sched_yield();
  if (!done()) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done(); });
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
    : transport_(*transport),
      patience_(patience),
      rank_(transport_.rank()),
      size_(transport_.size()) {
  remains_->transport = std::move(transport);
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    abandoned_ = std::uncaught_exceptions() > 0;
    has_submitted_ = true;
  }
  submitted_changed_.notify_all();
  thread_.join();
  if (!failure_.empty()) {
    // Peers may still write into what broken operations posted, and MPI would wait for them: leave
    // it all to the end of the process.
    [[maybe_unused]] auto* left = remains_.release();
  }
}

Work Engine::submit(int lane, std::shared_ptr<Operation> operation, Milliseconds timeout) {
  Work work(operation);
  {
    std::lock_guard lock(mutex_);
    submitted_.push_back({lane, std::move(operation), timeout});
    has_submitted_.store(true, std::memory_order_release);
  }
  submitted_changed_.notify_one();
  return work;
}

void Engine::run() {
  auto asleep = Operation::Clock::now() + kAlert;
  while (true) {
    if (has_submitted_.load(std::memory_order_acquire) && !take_submitted()) break;
    if (!lanes_.empty() || !laneless_.empty()) {
      poll();
      asleep = Operation::Clock::now() + kAlert;
    } else if (Operation::Clock::now() >= asleep) {
      std::unique_lock lock(mutex_);
      submitted_changed_.wait(lock, [&] { return has_submitted_.load(); });
    }
    sched_yield();  // a rank that polls must not keep its peers from the core
  }
  say_goodbye();
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
  if (abandoned_ && failure_.empty()) {
    // The peers wait for what this rank will never call.
    fail(c10::str("[comm.mpi] rank ", rank_, " of ", size_, ": an exception ended it"));
    fail_all(failure_);
  }
  return !(stopping_ && lanes_.empty() && laneless_.empty());
}

void Engine::poll() {
  if (failure_.empty()) check_peers();
  if (!failure_.empty()) return fail_all(failure_);
  for (auto lane = lanes_.begin(); lane != lanes_.end();) {
    if (step(lane->second.front())) lane->second.pop_front();
    if (!failure_.empty()) return fail_all(failure_);
    lane = lane->second.empty() ? lanes_.erase(lane) : std::next(lane);
  }
  std::erase_if(laneless_, [&](Active& active) { return failure_.empty() && step(active); });
  if (!failure_.empty()) fail_all(failure_);
}

/// Advances one operation; true when it is done.
bool Engine::step(Active& active) {
  auto& operation = *active.operation;
  try {
    if (!active.deadline) {
      active.deadline = Operation::Clock::now() + active.timeout;
      operation.start(transport_);
    }
    if (operation.advance(transport_)) {
      operation.finish(nullptr);
      return true;
    }
    if (Operation::Clock::now() > *active.deadline) {
      const auto missing = operation.waits_for();
      TORCH_CHECK(
          false, "not done after ", in_seconds(active.timeout), "; no word from rank",
          missing.size() == 1 ? " " : "s ", c10::Join(", ", missing));
    }
  } catch (const c10::Error& error) {
    fail(operation.scope() + error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(operation.scope() + error.what());
  }
  return false;
}

/// Looks for another rank's error.
void Engine::check_peers() {
  if (size_ == 1) return;
  auto& news = remains_->news;
  auto& request = remains_->news_request;
  try {
    if (!request) request = transport_.receive_any(kControlTag, news.data(), kFarewell);
    if (!heard_ && request->test()) heard_ = Operation::Clock::now();
    // What that rank still took part in can be completed here; only what it failed in must fail.
    if (heard_ && Operation::Clock::now() > *heard_ + kGrace) {
      failure_ = std::string("another rank failed: ") + news.data();
    }
  } catch (const std::exception& error) {
    failure_ = error.what();
  }
}

/// Notes an error of this rank and sends it to all others.
void Engine::fail(const std::string& what) {
  failure_ = what;
  auto& farewell = remains_->farewell;
  farewell.assign(kFarewell, '\0');
  std::copy_n(what.begin(), std::min(what.size(), kFarewell - 1), farewell.begin());
  try {
    for (int64_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      remains_->farewell_requests.push_back(
          transport_.send(peer, kControlTag, farewell.data(), kFarewell));
    }
  } catch (const std::exception&) {
    // The transport itself is broken: the peers will notice that too.
  }
}

/// Sees an error off, for a while: it leaves without the help of the ranks it goes to, but not at
/// once.
void Engine::flush_farewell() {
  auto& requests = remains_->farewell_requests;
  const auto deadline = Operation::Clock::now() + kFarewellTime;
  const auto sent = [](auto& request) { return request->test(); };
  try {
    while (std::erase_if(requests, sent), !requests.empty()) {
      if (Operation::Clock::now() > deadline) break;
      sched_yield();
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
  flush_farewell();  // after those who wait here have heard
}

/// At the end of a healthy world: waits until every rank has come here, since finishing MPI is
/// collective. If one doesn't come in time the others leave without it, and the launcher says so.
void Engine::say_goodbye() {
  if (!failure_.empty()) return;
  if (size_ > 1) {
    auto barrier = make_world_barrier(rank_, size_);
    remains_->operations.push_back(barrier);
    Active last{kNoLane, barrier, patience_};
    while (failure_.empty() && !step(last)) {
      check_peers();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the others may be long at work
    }
    if (!failure_.empty()) return;
    remains_->operations.clear();
  }
  remains_->news_request.reset();
  transport_.finish();
}

}  // namespace sherd
