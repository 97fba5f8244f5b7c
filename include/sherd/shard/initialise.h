// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>

#include "sherd/export.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

/// A scope in which tensors that this thread creates through at::empty (as torch's modules do, and
/// zeros, ones, full, randn) have a shape and a dtype but no memory (torch's meta device). Build a
/// model of any size in it, shard it, then call initialise().
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

/// A distribution of initial values. Random values depend on the seed, the parameter's full name
/// and the element's index in the whole parameter alone, so they are the same for any number of
/// ranks, any strategy and any cuts (ParameterRule::cut).
struct SHERD_API InitialValues {
  enum class Kind : uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  double a = 0;  ///< the constant, the lower bound or the mean
  double b = 0;  ///< the upper bound or the standard deviation

  static InitialValues constant(double value) { return {Kind::constant, value, 0}; }
  static InitialValues uniform(double low, double high) { return {Kind::uniform, low, high}; }
  static InitialValues normal(double mean, double deviation) {
    return {Kind::normal, mean, deviation};
  }
};

/// Options of initialise(). Must be equal on all ranks.
struct InitialiseOptions {
  uint64_t seed = 0;  ///< seed of all random values
  /// Returns the distribution for a parameter, given its full name and the shape of the whole, of
  /// which this rank may have a part (ParameterRule::cut); nothing leaves it to
  /// the module's reset_parameters(). If empty, reset_parameters() sets all parameters.
  std::function<std::optional<InitialValues>(const std::string& name, at::IntArrayRef shape)>
      values{};
};

/// Gives values to the parameters and buffers of a sharded model that have none (those created
/// under MetaDevice). Parameters get the distribution that options.values returns. All else is set
/// by the reset_parameters() of the module that registered it, inner modules first, each with
/// random numbers that depend on the seed and the module's name alone. The values are the same on
/// every rank, for any number of ranks and any strategy.
///
/// Call it on all ranks after fully_shard of the root. Sends nothing, unless the last pass has
/// failed; may wait for the device.
/// Needs memory for one full unit at a time where reset_parameters() sets values. Throws, naming
/// the parameter, if its module has no known reset_parameters() or leaves elements unset, and for a
/// part of a larger parameter that options.values gives nothing; the units before that one then
/// have their values. Also throws during a pass, and if the model is not
/// sharded. A forward throws while parameters have no values.
SHERD_API void initialise(ModuleRef model, const InitialiseOptions& options = {});

namespace detail {
/// Registers the function that resets modules of exactly this type; replaces an earlier one. Any
/// thread.
SHERD_API void register_reset(std::type_index type, std::function<void(torch::nn::Module&)> reset);
}  // namespace detail

/// Registers the reset_parameters() of a module implementation for initialise(); does nothing if it
/// has none. Always returns true, so that it can initialise a static variable. It serves exactly
/// this type: derived types need a call of their own. SHERD_MODULE calls it, and torch's Linear,
/// Bilinear, Embedding, EmbeddingBag, LayerNorm, GroupNorm, BatchNorm1d to 3d and Conv1d to
/// 3d modules are registered, so call it only for other modules that are declared with
/// TORCH_MODULE. Any thread.
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
