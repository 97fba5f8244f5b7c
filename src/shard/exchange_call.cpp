// SPDX-License-Identifier: Apache-2.0
#include "shard/exchange_call.h"

#include <algorithm>
#include <vector>

#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

/// The runtimes whose units were entered on this thread, the one entered last at the end. A
/// backward may end on another thread, so whether one is in a pass is asked when it matters.
std::vector<std::weak_ptr<Runtime>>& entered_runtimes() {
  thread_local std::vector<std::weak_ptr<Runtime>> stack;
  return stack;
}

/// Returns the runtime that was entered last of those that are in a pass; null if there is none.
std::shared_ptr<Runtime> runtime_at_work() {
  const auto& stack = entered_runtimes();
  for (auto entered = stack.rbegin(); entered != stack.rend(); ++entered) {
    auto runtime = entered->lock();
    if (runtime && !runtime->state().is_between_passes()) return runtime;
  }
  return nullptr;
}

}  // namespace

void set_at_work(const std::shared_ptr<Runtime>& runtime) {
  auto& stack = entered_runtimes();
  if (!stack.empty() && stack.back().lock() == runtime) return;
  std::erase_if(stack, [&](const std::weak_ptr<Runtime>& entered) {
    const auto other = entered.lock();
    return !other || other == runtime;
  });
  stack.push_back(runtime);
}

void make_exchange(const ExchangeCall& call, c10::function_ref<void()> send) {
  if (const auto runtime = runtime_at_work()) {
    runtime->parts().exchanges.run(call, send);
  } else if (!call.is_meta()) {
    send();
  }
}

}  // namespace sherd
