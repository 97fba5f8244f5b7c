// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/initialise.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "device/random_state.h"
#include "kernels/keyed_fill.h"
#include "shard/outside_inference.h"
#include "shard/replace_data.h"
#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

using Reset = std::function<void(torch::nn::Module&)>;

template <class Impl>
std::pair<const std::type_index, Reset> of_torch() {
  return {std::type_index(typeid(Impl)), [](torch::nn::Module& module) {
            dynamic_cast<Impl&>(module).reset_parameters();
          }};
}

struct Resets {
  std::mutex mutex;
  std::map<std::type_index, Reset> by_type{
      of_torch<torch::nn::LinearImpl>(),      of_torch<torch::nn::BilinearImpl>(),
      of_torch<torch::nn::EmbeddingImpl>(),   of_torch<torch::nn::EmbeddingBagImpl>(),
      of_torch<torch::nn::LayerNormImpl>(),   of_torch<torch::nn::GroupNormImpl>(),
      of_torch<torch::nn::BatchNorm1dImpl>(), of_torch<torch::nn::BatchNorm2dImpl>(),
      of_torch<torch::nn::BatchNorm3dImpl>(), of_torch<torch::nn::Conv1dImpl>(),
      of_torch<torch::nn::Conv2dImpl>(),      of_torch<torch::nn::Conv3dImpl>()};
};

Resets& resets() {
  static auto& one = *new Resets();
  return one;
}

Reset find_reset(const torch::nn::Module& module) {
  std::lock_guard lock(resets().mutex);
  const auto found = resets().by_type.find(std::type_index(typeid(module)));
  return found == resets().by_type.end() ? nullptr : found->second;
}

/// The same on every machine, unlike std::hash.
uint64_t key_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  }
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  return hash ^ (hash >> 31);
}

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

/// Integers of the same size.
c10::ScalarType bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 1: return at::kChar;
    case 2: return at::kShort;
    case 4: return at::kInt;
    default: return at::kLong;
  }
}

// A NaN that no arithmetic makes: all bits set. What still has it was not written.
at::Tensor make_unset(at::IntArrayRef sizes, const at::TensorOptions& options) {
  auto result = at::empty(sizes, options);
  if (!result.is_floating_point()) return result.zero_();
  result.view(bits_of(result)).fill_(-1);
  return result;
}

bool has_unset(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || tensor.numel() == 0) return false;
  return tensor.view(bits_of(tensor)).eq(-1).any().item<bool>();
}

/// A parameter or buffer that is being given values.
struct Fresh {
  std::string name;
  at::Tensor tensor;
  std::optional<UnitParameter> place;  // none: a buffer
};

/// One unit's parameters and buffers on their way to values. They are whole while it lives.
class Birth {
 public:
  Birth(Unit& unit, torch::nn::Module& module, std::string path, const InitialiseOptions& options)
      : unit_(unit), options_(options), path_(std::move(path)) {
    collect(module, path_);
  }
  ~Birth() {
    // Buffers without values stay so: another initialise() gives them some.
    for (const auto& fresh : fresh_) {
      if (complete_ || fresh.place) continue;
      const auto options = fresh.tensor.options().device(c10::kMeta);
      replace_data(fresh.tensor, at::empty(fresh.tensor.sizes(), options));
    }
    for (const auto& place : unit_.members().parameters()) {
      replace_data(place.parameter, unit_.groups()[place.group]->parameters().view(place.index));
    }
  }
  Birth(const Birth&) = delete;
  Birth& operator=(const Birth&) = delete;

  void run() {
    draw_by_key();
    materialise();
    for (const auto& [module, path] : modules_) reset(*module, path);
    for (const auto& fresh : fresh_) {
      TORCH_CHECK_VALUE(
          !has_unset(fresh.tensor), "[shard] '", fresh.name,
          "' still has elements without a value after reset_parameters: set them all there, or "
          "give it values with options.values");
    }
    for (const auto& fresh : fresh_) {
      if (!fresh.place) continue;
      auto& group = *unit_.groups()[fresh.place->group];
      group.storage().set_values(fresh.place->index, fresh.tensor.detach().reshape({-1}));
    }
    complete_ = true;
  }

 private:
  /// The modules of this unit, inner ones first, as constructors run.
  void collect(torch::nn::Module& module, const std::string& path) {
    for (const auto& child : module.named_children()) {
      if (!find_unit(child.value().get())) collect(*child.value(), join(path, child.key()));
    }
    modules_.emplace_back(&module, path);
  }

  void draw_by_key() {
    if (!options_.values) return;
    for (const auto& place : unit_.members().parameters()) {
      auto& group = *unit_.groups()[place.group];
      if (!group.storage().is_uninitialised(place.index)) continue;
      const auto name = join(path_, group.name(place.index));
      const auto values = options_.values(name, group.layout().whole_shape(place.index));
      if (!values) continue;
      group.storage().fill_by_key(
          place.index, key_of(options_.seed, name),
          {static_cast<KeyedValues::Kind>(values->kind), values->a, values->b});
    }
  }

  /// A module that has a part of a parameter would set it as if it were the whole: by its smaller
  /// size, and with the same numbers on all ranks.
  static void check_whole(const Group& group, size_t member, const std::string& name) {
    const auto& cut = group.layout().cut(member);
    TORCH_CHECK_VALUE(
        !cut || part_shape(*cut) == cut->shape, "[shard] parameter '", name, "' has ",
        cut ? to_text(*cut) : "",
        ", and its module's reset_parameters() knows nothing of the rest: give it values in "
        "InitialiseOptions::values, which draws those of the whole");
  }

  void materialise() {
    const auto device = unit_.mesh().world().device();
    const auto parameters = unit_.members().parameters();
    for (const auto& place : parameters) {
      const auto& group = *unit_.groups()[place.group];
      if (!group.storage().is_uninitialised(place.index)) continue;
      fresh_.push_back({join(path_, group.name(place.index)), place.parameter, place});
      check_whole(group, place.index, fresh_.back().name);
    }
    add_buffers(device);
    if (fresh_.empty()) return;
    // Those that have their values already may be written as well; nothing is taken from them.
    for (const auto& place : parameters) {
      const auto dtype = unit_.groups()[place.group]->traits().dtypes.main;
      const auto options = at::TensorOptions().dtype(dtype).device(device);
      replace_data(place.parameter, make_unset(place.parameter.sizes(), options));
    }
  }

  void add_buffers(c10::Device device) {
    for (const auto& [module, path] : modules_) {
      for (const auto& item : module->named_buffers(/*recurse=*/false)) {
        const auto& buffer = item.value();
        if (!buffer.is_meta()) continue;
        replace_data(buffer, make_unset(buffer.sizes(), buffer.options().device(device)));
        fresh_.push_back({join(path, item.key()), buffer, std::nullopt});
      }
    }
  }

  bool is_fresh(const at::Tensor& tensor) const {
    return std::any_of(fresh_.begin(), fresh_.end(), [&](const Fresh& fresh) {
      return fresh.tensor.is_same(tensor);
    });
  }

  /// Random numbers depend on the seed and the module's name alone. What an earlier module shares
  /// with this one stays as that one set it.
  void reset(torch::nn::Module& module, const std::string& path) {
    std::vector<at::Tensor> own;
    for (const auto& item : module.named_parameters(/*recurse=*/false)) own.push_back(item.value());
    for (const auto& item : module.named_buffers(/*recurse=*/false)) own.push_back(item.value());
    std::erase_if(own, [&](const at::Tensor& tensor) { return !is_fresh(tensor); });
    const auto reset_parameters = find_reset(module);
    if (own.empty()) {
      // A module without any of its own may still set those of its children.
      if (!reset_parameters || fresh_.empty() || module.children().empty()) return;
    }
    TORCH_CHECK_VALUE(
        reset_parameters, "[shard] '", name_of(own.front()), "' has no values, and its module ",
        module.name(),
        " no reset_parameters that is known: write one and use SHERD_MODULE, call "
        "sherd::register_reset, or give it values with options.values");
    std::vector<std::pair<at::Tensor, at::Tensor>> earlier_values;
    for (const auto& tensor : own) {
      if (!done_.insert(tensor.unsafeGetTensorImpl()).second) {
        earlier_values.emplace_back(tensor, tensor.detach().clone());
      }
    }
    const auto random = RandomState::now();
    at::manual_seed(key_of(options_.seed, path));
    try {
      reset_parameters(module);
    } catch (...) {
      random.restore();
      throw;
    }
    random.restore();
    for (const auto& [tensor, values] : earlier_values) tensor.detach().copy_(values);
  }

  std::string name_of(const at::Tensor& tensor) const {
    for (const auto& fresh : fresh_) {
      if (fresh.tensor.is_same(tensor)) return fresh.name;
    }
    return "";
  }

  Unit& unit_;
  const InitialiseOptions& options_;
  std::string path_;
  std::vector<std::pair<torch::nn::Module*, std::string>> modules_;
  std::vector<Fresh> fresh_;
  bool complete_ = false;
  std::set<const c10::TensorImpl*> done_;
};

}  // namespace

void detail::register_reset(std::type_index type, std::function<void(torch::nn::Module&)> reset) {
  std::lock_guard lock(resets().mutex);
  resets().by_type[type] = std::move(reset);
}

void initialise(ModuleRef model, const InitialiseOptions& options) {
  const auto root = find_unit(model.get());
  TORCH_CHECK_VALUE(
      root, "[shard] initialise is called with '", model->name(),
      "', which is not sharded: call sherd::fully_shard on the whole model first");
  if (root->runtime()) root->runtime()->wait_until_idle("initialise");
  const OutsideInference normal;
  std::set<const Unit*> seen;
  for (const auto& item : model->named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    auto& module = *item.value();
    const auto unit = find_unit(&module);
    if (!unit || !seen.insert(unit.get()).second) continue;
    Birth(*unit, module, &module == model.get() ? "" : item.key(), options).run();
  }
  // The program may be there already: its gathers have to wait for what was written here.
  if (root->runtime()) root->runtime()->note_edit();
}

}  // namespace sherd
