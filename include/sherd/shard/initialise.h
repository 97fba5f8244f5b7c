// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>

#include "sherd/export.h"

namespace sherd {

/// While it lives, tensors made on this thread have a shape and a dtype but no memory. A model of
/// any size can be built so, sharded unit by unit, and given values by initialise().
class SHERD_API MetaDevice {
 public:
  MetaDevice();
  ~MetaDevice();
  MetaDevice(const MetaDevice&) = delete;
  MetaDevice& operator=(const MetaDevice&) = delete;

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

/// Values drawn from a generator whose key is the seed, the parameter's full name and the number of
/// the element: the same for any number of ranks and any strategy.
struct SHERD_API InitialValues {
  enum class Kind : uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  double a = 0;
  double b = 0;

  static InitialValues constant(double value) { return {Kind::constant, value, 0}; }
  static InitialValues uniform(double low, double high) { return {Kind::uniform, low, high}; }
  static InitialValues normal(double mean, double deviation) {
    return {Kind::normal, mean, deviation};
  }
};

struct InitialiseOptions {
  uint64_t seed = 0;
  /// What a parameter gets, by its full name and shape; nothing: what its module gives it.
  std::function<std::optional<InitialValues>(const std::string& name, at::IntArrayRef shape)>
      values{};
};

/// Gives values to the parameters and buffers of a sharded model that have none (those made under
/// MetaDevice): drawn by key where options.values says so, else by the `reset_parameters` of the
/// module that registered them, inner modules before outer ones, each with random numbers of its
/// own, keyed by seed and the module's name. The same bytes on every rank, for any number of ranks
/// and any strategy. Takes the memory of one unit beyond the shards. All ranks call it alike, after
/// fully_shard of the root; nothing is sent. Until then, or where something is still unset
/// afterwards, training is refused with the parameter's name.
SHERD_API void initialise(torch::nn::Module& model, const InitialiseOptions& options = {});
template <class Contained>
void initialise(
    const torch::nn::ModuleHolder<Contained>& model, const InitialiseOptions& options = {}) {
  initialise(static_cast<torch::nn::Module&>(*model.ptr()), options);
}

/// Runs `edit` with the main weight of each parameter of one unit, by its name there: whole, and in
/// the dtype that the optimizer updates. Keeps what it wrote (the same on all ranks). Between
/// passes only, of parameters that have values. Collective; blocks.
SHERD_API void edit_main_weights(
    torch::nn::Module& unit,
    const std::function<void(const std::string& name, const at::Tensor& weight)>& edit);

namespace detail {
SHERD_API void register_reset(std::type_index type, std::function<void(torch::nn::Module&)> reset);
}  // namespace detail

/// Tells initialise() that modules of this type have a `reset_parameters`. SHERD_MODULE does so,
/// and torch's own are known.
template <class Impl>
bool register_reset() {
  if constexpr (requires(Impl & module) { module.reset_parameters(); }) {
    detail::register_reset(std::type_index(typeid(Impl)), [](torch::nn::Module& module) {
      dynamic_cast<Impl&>(module).reset_parameters();
    });
  }
  return true;
}

}  // namespace sherd
