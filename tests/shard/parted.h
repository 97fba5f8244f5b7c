// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shard/parity.h"
#include "sherd/shard/initialise.h"

// A model whose large parameters are parts of whole ones, as under tensor or expert parallelism,
// but without exchanges: a rank computes with its part alone. So the same model with whole
// parameters, whose ranks use the same parts of them, must train alike.
namespace sherd::testing {

/// Part `index` of `count`.
struct Share {
  int64_t count = 1;
  int64_t index = 0;
};

/// Every parameter of the model that is cut: rows, queries with keys and values (three ranges of
/// rows), columns, experts, and two ranges of the last dim.
const std::vector<std::string>& parted_names();
/// The cut of one of them, by its name within its unit or the model.
Cut parted_cut(const std::string& name, const Share& share);

struct MixerImpl : torch::nn::Module {
  MixerImpl(const Share& held, const Share& used);
  at::Tensor forward(const at::Tensor& x);
  Share held, used;
  at::Tensor qkv, experts, scale;
};
SHERD_MODULE(Mixer);

struct FeedImpl : torch::nn::Module {
  FeedImpl(const Share& held, const Share& used);
  at::Tensor forward(const at::Tensor& x);
  Share held, used;
  at::Tensor rows, columns, cube, bias;
};
SHERD_MODULE(Feed);

struct PartedImpl : torch::nn::Module {
  /// Its parameters are the part `held`; a forward computes with the part `used`, which is the same
  /// unless `held` is the whole.
  PartedImpl(const Share& held, const Share& used);
  at::Tensor forward(const at::Tensor& x);
  Mixer mixer{nullptr};
  Feed feed{nullptr};
  at::Tensor head;
};
SHERD_MODULE(Parted);

/// How the ranks of the world are divided: rank r has part r % parts of what is cut.
struct Division {
  int64_t parts = 1;
  bool two_axes = false;  ///< the rest of the ranks along two data-parallel axes

  Share mine() const { return {parts, test_world().rank() % parts}; }
  /// Data-parallel axes of all ranks, and of those with the same part.
  Mesh all() const;
  Mesh lines() const;
  /// One rule for each cut parameter that is called `prefix` + its name.
  std::vector<ParameterRule> rules() const;
};
/// The divisions that the world's size allows with a placement, but for that into one part.
std::vector<Division> divisions_for(const ShardingCase& way);

/// Makes the units; nothing is cut if the division has one part. `used`: as in PartedImpl; default:
/// the parts that are held. With `meta`, parameters have no values.
struct PartedOptions {
  Division division{};
  std::optional<Share> used{};
  Placement placement{Strategy::optim_grads_params};
  Precision precision{};
  bool meta = false;
};
Parted make_parted(const PartedOptions& options);
/// Initial values by key for all its parameters.
InitialiseOptions parted_values();
/// A rank's batch in a step.
at::Tensor parted_input(int64_t step);

}  // namespace sherd::testing
