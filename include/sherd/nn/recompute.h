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

/// A function of tensors, as recompute sees it.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Computes `function(inputs)` without keeping what its backward needs, and computes it again in
/// the backward. Gradients reach the inputs and whatever the function refers to; it must do the
/// same both times, and random numbers are the same both times. May be nested, and may call units:
/// around or inside one unit it costs no further gather; the units of one recompute around several
/// stay gathered from then until their own backward.
SHERD_API std::vector<at::Tensor> recompute_all(
    const TensorFunction& function, const std::vector<at::Tensor>& inputs);

/// Whether this thread computes something again, in a backward.
SHERD_API bool recomputing();

/// The same for a function of tensors that returns a tensor, or a tuple or vector of them.
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
