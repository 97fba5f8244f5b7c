// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "shard/runtime.h"

namespace sherd {

/// Runs `action` here and then throws on all ranks where it threw on one. Collective.
template <class Action>
void on_all_ranks(const Runtime& runtime, const Action& action) {
  std::string problem;
  bool value_error = false;
  try {
    action();
  } catch (const c10::ValueError& error) {
    value_error = true;
    problem = error.what_without_backtrace();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (!problem.empty()) problem.insert(0, value_error ? "v" : "s");
  for (const auto& [rank, said] : runtime.say(problem, /*most=*/1)) {
    TORCH_CHECK_VALUE(said[0] != 'v', said.substr(1));
    TORCH_CHECK(false, said.substr(1));
  }
}

}  // namespace sherd
