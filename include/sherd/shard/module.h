// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any_module_holder.h>
#include <torch/nn/pimpl.h>

#include <array>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/shard/boundary.h"
#include "sherd/shard/initialise.h"

namespace sherd {

// ---- the tensors of a unit's result -------------------------------------------------------------

// A unit may return a tensor, a number, an enum or a string, and tuples, pairs, vectors, arrays,
// maps (their values) and optionals of these. For your own struct, define in its namespace
//   template <class Visitor> void visit_tensors(const YourStruct& value, Visitor visitor) {
//     visitor(value.hidden); visitor(value.losses);
//   }

namespace detail {

template <class T>
struct TensorsOf;

template <class T, class Visitor>
void each_tensor(const T& value, Visitor& visitor) {
  TensorsOf<std::remove_cvref_t<T>>::visit(value, visitor);
}

template <class T>
concept HasVisitTensors = requires(const T& value) {
  visit_tensors(value, [](const auto&) {});
};

template <class T>
struct TensorsOf {
  template <class Visitor>
  static void visit(const T& value, Visitor& visitor) {
    if constexpr (std::convertible_to<const T&, const at::Tensor&>) {
      visitor(static_cast<const at::Tensor&>(value));
    } else if constexpr (HasVisitTensors<T>) {
      visit_tensors(value, [&](const auto& inner) { each_tensor(inner, visitor); });
    } else {
      static_assert(
          std::is_arithmetic_v<T> || std::is_enum_v<T> || std::convertible_to<T, std::string>,
          "sherd: a unit returns a type whose tensors are not known: define visit_tensors for it");
    }
  }
};

template <class T>
struct TensorsOf<std::optional<T>> {
  template <class Visitor>
  static void visit(const std::optional<T>& value, Visitor& visitor) {
    if (value) each_tensor(*value, visitor);
  }
};

template <class... Ts>
struct TensorsOf<std::tuple<Ts...>> {
  template <class Visitor>
  static void visit(const std::tuple<Ts...>& value, Visitor& visitor) {
    std::apply([&](const auto&... parts) { (each_tensor(parts, visitor), ...); }, value);
  }
};

template <class A, class B>
struct TensorsOf<std::pair<A, B>> {
  template <class Visitor>
  static void visit(const std::pair<A, B>& value, Visitor& visitor) {
    each_tensor(value.first, visitor);
    each_tensor(value.second, visitor);
  }
};

template <class Range>
struct TensorsOfRange {
  template <class Visitor>
  static void visit(const Range& value, Visitor& visitor) {
    for (const auto& part : value) each_tensor(part, visitor);
  }
};
template <class T>
struct TensorsOf<std::vector<T>> : TensorsOfRange<std::vector<T>> {};
template <class T, size_t N>
struct TensorsOf<std::array<T, N>> : TensorsOfRange<std::array<T, N>> {};
template <class K, class V>
struct TensorsOf<std::map<K, V>> : TensorsOfRange<std::map<K, V>> {};

/// One call through a unit's boundary. If the forward throws, the destructor releases all units.
class Crossing {
 public:
  explicit Crossing(const torch::nn::Module& module) : call_(before_forward(module)) {}
  ~Crossing() {
    if (!left_) abandon(call_);
  }
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  /// Returns the tensor, cast to the unit's compute dtype if it is floating point and the unit
  /// casts its inputs.
  at::Tensor cast(const at::Tensor& input) const {
    const auto dtype = call_.input_dtype();
    const bool differs =
        dtype && input.defined() && input.is_floating_point() && input.scalar_type() != *dtype;
    return differs ? input.to(*dtype) : input;
  }

  template <class T>
  void leave(const T& result) {
    std::vector<at::Tensor> outputs;
    const auto collect = [&](const at::Tensor& tensor) { outputs.push_back(tensor); };
    each_tensor(result, collect);
    leave_with(outputs);
  }
  void leave_with(std::span<const at::Tensor> outputs) {
    after_forward(call_, outputs);
    left_ = true;
  }

 private:
  UnitCall call_;
  bool left_ = false;
};

}  // namespace detail

namespace detail {

/// Returns an argument of the unit's forward, cast if it is a tensor.
template <class T>
decltype(auto) cast_input(const Crossing& crossing, T&& argument) {
  if constexpr (std::same_as<std::remove_cvref_t<T>, at::Tensor>) {
    return crossing.cast(argument);
  } else {
    return std::forward<T>(argument);
  }
}

/// Calls the module's forward with cast arguments. A forward that takes tensors by non-const
/// reference, to write them, gets its arguments without a cast.
template <class M, class... Args>
decltype(auto) forward(M& module, const Crossing& crossing, Args&&... args) {
  if constexpr (requires { module.forward(cast_input(crossing, std::forward<Args>(args))...); }) {
    return module.forward(cast_input(crossing, std::forward<Args>(args))...);
  } else {
    return module.forward(std::forward<Args>(args)...);
  }
}

}  // namespace detail

/// Calls a module's forward through the unit's boundary, as the holders of SHERD_MODULE do: gathers
/// the parameters before and releases them after (before_forward() and after_forward() in
/// boundary.h, with their errors). Arguments that are floating-point tensors are cast to the unit's
/// compute dtype; tensors inside containers, optionals and structs are not, and a forward that
/// takes a tensor by non-const reference gets all its arguments without a cast. If the forward
/// throws, the pass is abandoned and the exception passed on. A module that is not a unit is just
/// called.
template <std::derived_from<torch::nn::Module> M, class... Args>
auto call(M& module, Args&&... args)
    -> decltype(std::declval<M&>().forward(std::forward<Args>(args)...)) {
  using Result = decltype(module.forward(std::forward<Args>(args)...));
  detail::Crossing crossing(module);
  if constexpr (std::is_void_v<Result>) {
    detail::forward(module, crossing, std::forward<Args>(args)...);
    crossing.leave_with({});
  } else {
    Result result = detail::forward(module, crossing, std::forward<Args>(args)...);
    crossing.leave(result);
    return static_cast<Result>(result);
  }
}

template <class Contained, class... Args>
auto call(const torch::nn::ModuleHolder<Contained>& holder, Args&&... args)
    -> decltype(call(std::declval<Contained&>(), std::forward<Args>(args)...)) {
  return call(*holder.ptr(), std::forward<Args>(args)...);
}

/// A torch::nn::ModuleHolder whose call operator goes through the unit's boundary (sherd::call).
template <class Contained>
class ModuleHolder : public torch::nn::ModuleHolder<Contained> {
 public:
  using torch::nn::ModuleHolder<Contained>::ModuleHolder;

  template <class... Args>
  auto operator()(Args&&... args)
      -> decltype(std::declval<Contained&>().forward(std::forward<Args>(args)...)) {
    return sherd::call(*this->ptr(), std::forward<Args>(args)...);
  }
};

namespace detail {
/// True for module implementations that SHERD_MODULE has marked, by a function found through
/// argument-dependent lookup.
template <class M>
concept IsSherdModule = requires(const M* module) {
  sherd_module_mark(module);
};
}  // namespace detail

}  // namespace sherd

/// Defines a module's holder, in place of TORCH_MODULE_IMPL and TORCH_MODULE. Calling the holder
/// goes through the unit's boundary, and initialise() knows the module's reset_parameters().
#define SHERD_MODULE_IMPL(Name, ImplType)                            \
  class Name : public sherd::ModuleHolder<ImplType> { /*NOLINT*/     \
   public:                                                           \
    using sherd::ModuleHolder<ImplType>::ModuleHolder;               \
    using Impl = ImplType;                                           \
  };                                                                 \
  [[maybe_unused]] inline void sherd_module_mark(const ImplType*) {} \
  [[maybe_unused]] static const bool sherd_##Name##_is_known = sherd::register_reset<ImplType>()
#define SHERD_MODULE(Name) SHERD_MODULE_IMPL(Name, Name##Impl)

namespace torch::nn {

/// The AnyModule holder of modules declared with SHERD_MODULE: inside a Sequential or an AnyModule
/// they are called through their unit's boundary.
template <class ModuleType, class... ArgumentTypes>
requires sherd::detail::IsSherdModule<ModuleType>
struct AnyModuleHolder<ModuleType, ArgumentTypes...> : public AnyModulePlaceholder {
  explicit AnyModuleHolder(std::shared_ptr<ModuleType>&& held)
      : AnyModulePlaceholder(typeid(ModuleType)), module(std::move(held)) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    const auto most = sizeof...(ArgumentTypes);
    const bool defaults = module->_forward_has_default_args();
    const size_t least = defaults ? module->_forward_num_required_args() : most;
    TORCH_CHECK(
        arguments.size() >= least && arguments.size() <= most, c10::demangle(type_info.name()),
        "'s forward() takes ", least, " to ", most, " arguments, not ", arguments.size(),
        defaults ? "" : "; declare default arguments with FORWARD_HAS_DEFAULT_ARGS");
    if (defaults) arguments = module->_forward_populate_default_args(std::move(arguments));
    return invoke(arguments, std::index_sequence_for<ArgumentTypes...>());
  }

  std::shared_ptr<Module> ptr() override { return module; }

  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<AnyModuleHolder>(*this);
  }

  std::unique_ptr<AnyModulePlaceholder> clone_module(std::optional<Device> device) const override {
    return std::make_unique<AnyModuleHolder>(
        std::dynamic_pointer_cast<ModuleType>(module->clone(device)));
  }

  std::shared_ptr<ModuleType> module;

 private:
  template <class T>
  std::decay_t<T>&& argument(std::vector<AnyValue>& arguments, size_t index) {
    auto* value = arguments[index].template try_get<std::decay_t<T>>();
    TORCH_CHECK(
        value, "argument ", index, " of ", c10::demangle(type_info.name()), " is a ",
        c10::demangle(arguments[index].type_info().name()), ", not a ",
        c10::demangle(typeid(T).name()));
    return std::move(*value);
  }

  template <size_t... Index>
  AnyValue invoke(std::vector<AnyValue>& arguments, std::index_sequence<Index...>) {
    return AnyValue(sherd::call(*module, argument<ArgumentTypes>(arguments, Index)...));
  }
};

}  // namespace torch::nn
