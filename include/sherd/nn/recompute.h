// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/export.h"

namespace sherd {

/// A function from tensors to tensors.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Returns `function(inputs)` without keeping what its backward needs, and runs the function again
/// in the backward (activation checkpointing). It must do the same both times; random numbers and
/// autocast are restored. Gradients reach the inputs and everything else that the function uses,
/// such as parameters. Keeps the inputs, and the function itself, until the backward. Without
/// GradMode the function is just called.
///
/// Recomputes may be nested and may call units. Around or inside one unit, a recompute needs no
/// further gather; around several, the units stay gathered from their recomputation until their own
/// backward. The backward throws if it is asked for the gradients of some tensors only (`inputs` of
/// backward(), or autograd::grad) and parameters are among them, and if the function calls other
/// units the second time. Second derivatives throw.
SHERD_API std::vector<at::Tensor> recompute_all(
    const TensorFunction& function, const std::vector<at::Tensor>& inputs);

/// Returns whether this thread is running a recompute's function again, in a backward.
SHERD_API bool recomputing();

/// Does what recompute_all() does for a function that takes tensors and returns a tensor, or a
/// tuple or vector of them: `auto y = sherd::recompute([&](const at::Tensor& x) { return layer(x);
/// }, x);`
template <class Function, std::convertible_to<at::Tensor>... Inputs>
auto recompute(Function function, const Inputs&... inputs) {
  using Result = std::invoke_result_t<Function&, const Inputs&...>;
  const auto unpacked = [function =
                             std::move(function)](const std::vector<at::Tensor>& given) mutable {
    const auto call = [&]<size_t... I>(std::index_sequence<I...>) {
      return function(given[I]...);
    };
    auto result = call(std::index_sequence_for<Inputs...>());
    if constexpr (std::convertible_to<Result, at::Tensor>) {
      return std::vector<at::Tensor>{std::move(result)};
    } else if constexpr (std::convertible_to<Result, std::vector<at::Tensor>>) {
      return result;
    } else {
      return std::apply([](auto&... parts) { return std::vector<at::Tensor>{parts...}; }, result);
    }
  };
  auto results = recompute_all(unpacked, {at::Tensor(inputs)...});
  if constexpr (std::convertible_to<Result, at::Tensor>) {
    return std::move(results.front());
  } else if constexpr (std::convertible_to<Result, std::vector<at::Tensor>>) {
    return results;
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Result{std::move(results[I])...};
    }
    (std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

}  // namespace sherd
