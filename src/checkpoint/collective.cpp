// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/collective.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <future>
#include <optional>
#include <string>
#include <system_error>

namespace sherd {
namespace {

constexpr const char* kUnderWay = "w";

/// Nothing, or a letter for the kind of error and what it says.
std::string problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return std::string("v") + error.what_without_backtrace();
  } catch (const c10::Error& error) {
    return std::string("s") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("s") + error.what();
  }
  return "";
}

/// Throws on all ranks the problem of the first rank that has one. Collective.
void throw_first(const ShardedModel& model, const std::string& problem) {
  for (const auto& said : model.exchange_text(problem, /*most=*/1)) {
    TORCH_CHECK_VALUE(said[0] != 'v', said.substr(1));
    TORCH_CHECK(false, said.substr(1));
  }
}

/// Starts it on another thread, or does it here where there is none to be had.
std::future<std::string> start(c10::Device device, const std::function<void()>& action) {
  std::optional<c10::Stream> stream;
  if (device.is_cuda()) stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  const auto run = [stream, &action] {
    const c10::OptionalStreamGuard guard(stream);
    return problem_of(action);
  };
  try {
    return std::async(std::launch::async, run);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, run);
  }
}

}  // namespace

void on_all_ranks(const ShardedModel& model, const std::function<void()>& action) {
  throw_first(model, problem_of(action));
}

void on_all_ranks_for_long(
    const ShardedModel& model,
    const std::function<void()>& action,
    std::chrono::milliseconds interval) {
  auto work = start(model.world().device(), action);
  std::optional<std::string> mine;
  while (true) {
    const bool under_way = !mine && work.wait_for(interval) == std::future_status::timeout;
    if (!mine && !under_way) mine = work.get();
    if (model.exchange_text(under_way ? kUnderWay : "", /*most=*/1).empty()) break;
  }
  throw_first(model, *mine);
}

}  // namespace sherd
