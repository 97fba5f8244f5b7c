// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/failure.h"

#include <torch/csrc/autograd/engine.h>

#include <chrono>
#include <utility>

#include "shard/runtime/runtime_parts.h"

namespace sherd {

namespace {

/// Autograd's thread ends the node that it is at, then lets go of a backward that failed.
constexpr std::chrono::seconds kLetGo{10};

}  // namespace

/// Called by autograd at the end of a backward, or destroyed without when the backward failed.
class BackwardEnd::Callback {
 public:
  Callback(
      std::shared_ptr<BackwardEnd> end, std::function<void()> finish, std::function<void()> fail)
      : end_(std::move(end)), finish_(std::move(finish)), fail_(std::move(fail)) {}
  ~Callback() { end_->fail(fail_); }
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  void operator()() {
    if (!end_->over_) finish_();
  }

 private:
  std::shared_ptr<BackwardEnd> end_;
  std::function<void()> finish_;
  std::function<void()> fail_;
};

void BackwardEnd::queue(
    const std::shared_ptr<BackwardEnd>& end,
    std::function<void()> finish,
    std::function<void()> fail) {
  auto callback = std::make_shared<Callback>(end, std::move(finish), std::move(fail));
  torch::autograd::Engine::get_default_engine().queue_callback([callback] { (*callback)(); });
}

void BackwardEnd::fail(const std::function<void()>& fail) noexcept {
  const std::lock_guard lock(mutex_);
  if (!over_) fail();
  ended_.notify_all();
}

void BackwardEnd::wait(const std::function<void()>& fail) noexcept {
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, kLetGo, [&] { return over_.load(); });
  if (!over_) fail();
}

void release_all(RuntimeParts& parts) noexcept {
  for (auto* unit : parts.units) {
    if (!unit) continue;
    unit->hide(/*keeps_memory=*/true);  // a gather may still write there
    unit->activity().rest();
    for (const auto& group : unit->groups()) group->inbox().drop_pending();
  }
}

void recover(RuntimeParts& parts) {
  parts.executor.catch_up(parts.agreement.recover(parts.executor));
  parts.program.streams().finish();
  for (auto* unit : parts.units) unit->hide();
  parts.executor.free_gradients();
  // What the failed pass gave to compute comes before what the next one gathers.
  parts.program.signal_published();
  if (parts.state.has_incomplete_gradients()) parts.watch.forget(parts.state.step() + 1);
  parts.agreement.note_findings();
  parts.agreement.records().take_new_recomputes();  // of a pass that is over
  parts.agreement.records().take_new_exchanges();
  parts.state.recover();
  parts.abandonment.note_recovery();
}

}  // namespace sherd
