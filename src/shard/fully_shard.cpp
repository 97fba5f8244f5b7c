// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/fully_shard.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_set>

#include "shard/glob.h"
#include "shard/rank_texts.h"
#include "shard/registry.h"
#include "shard/replace_data.h"
#include "shard/runtime/runtime.h"
#include "shard/sharded_model.h"

namespace sherd {
namespace {

/// All ranks along one axis. It lives as long as a model that is sharded over it.
std::shared_ptr<const Mesh> default_mesh() {
  static std::mutex mutex;
  static std::weak_ptr<Mesh> shared;
  std::lock_guard lock(mutex);
  auto mesh = shared.lock();
  if (!mesh) {
    const auto world = World::from_environment();
    mesh = std::make_shared<Mesh>(world, std::vector<Axis>{{"dp", world.size()}});
    shared = mesh;
  }
  return mesh;
}

std::string name_of(const torch::nn::Module& module) {
  auto name = module.name();
  if (const auto scope = name.rfind("::"); scope != std::string::npos) name.erase(0, scope + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.erase(name.size() - 4);
  return name;
}

bool contains(const torch::nn::Module& outer, const torch::nn::Module& inner) {
  for (const auto& module : outer.modules(/*include_self=*/false)) {
    if (module.get() == &inner) return true;
  }
  return false;
}

/// Parameters that the unit of `module` is to own, with their names; those of units inside it stay
/// where they are, unless something outside such a unit uses them too.
class Claim {
 public:
  Claim(torch::nn::Module& module, const std::vector<std::string>& ignored)
      : module_(module), patterns_(ignored) {
    walk(module, "");
  }

  std::vector<UnshardedParameter> candidates() {
    std::vector<UnshardedParameter> result;
    for (auto& shared : shared_) {
      // Used by two units: it belongs to the one around both, which is this one.
      const auto owner = find_owner(shared.parameter);
      if (owner.unit) {  // which holds it meanwhile
        auto taken = take_from(*owner.unit, shared.parameter);
        shared.dtype = taken.dtype;
        shared.cut = std::move(taken.cut);
      }
      own_.push_back(shared);
    }
    std::unordered_set<const c10::TensorImpl*> seen;
    for (auto& candidate : own_) {
      if (seen.insert(candidate.parameter.unsafeGetTensorImpl()).second) {
        result.push_back(std::move(candidate));
      }
    }
    return result;
  }
  /// Those that match a pattern and are ignored from now on.
  const std::vector<std::pair<std::string, at::Tensor>>& ignored() const { return ignored_; }
  /// The names of all that are ignored, also by units inside this module.
  const std::vector<std::string>& left_alone() const { return left_alone_; }

 private:
  void walk(const torch::nn::Module& module, const std::string& prefix) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      see({prefix + item.key(), item.value()});
    }
    for (const auto& child : module.named_children()) {
      const auto inside = find_unit(child.value().get());
      if (inside) {
        see_unit(*child.value(), prefix + child.key() + ".");
      } else {
        walk(*child.value(), prefix + child.key() + ".");
      }
    }
  }

  /// A parameter that is used outside the units inside this module.
  void see(UnshardedParameter candidate) {
    if (is_ignored(candidate.parameter)) return left_alone_.push_back(candidate.name);
    for (const auto& pattern : patterns_) {
      if (matches_glob(pattern, candidate.name)) return ignore(candidate);
    }
    const auto owner = find_owner(candidate.parameter);
    if (!owner.unit) {
      own_.push_back(std::move(candidate));
      return;
    }
    const auto other = module_of(*owner.unit);
    TORCH_CHECK_VALUE(
        !other || !contains(*other, module_), "[shard] parameter '", candidate.name,
        "' belongs to unit '", owner.unit->name(),
        "', which contains this module: shard inner modules first");
    shared_.push_back(std::move(candidate));
  }

  void ignore(const UnshardedParameter& parameter) {
    TORCH_CHECK_VALUE(
        !parameter.parameter.is_meta() && !find_owner(parameter.parameter).unit,
        "[shard] parameter '", parameter.name, "' is to be ignored, but ",
        parameter.parameter.is_meta() ? "has no values, and Sherd would never give it any"
                                      : "a unit inside this module has it already");
    ignored_.emplace_back(parameter.name, parameter.parameter);
    left_alone_.push_back(parameter.name);
  }

  /// Parameters of an inner unit's module that this unit does not own are shared with another one.
  void see_unit(const torch::nn::Module& unit_module, const std::string& prefix) {
    for (const auto& item : unit_module.named_parameters()) {
      if (is_ignored(item.value())) {
        left_alone_.push_back(prefix + item.key());
        continue;
      }
      const auto owner = find_owner(item.value());
      const auto home = owner.unit ? module_of(*owner.unit) : nullptr;
      const bool at_home = home && (home.get() == &unit_module || contains(unit_module, *home));
      if (!at_home) shared_.push_back({prefix + item.key(), item.value()});
    }
  }

  /// Returns the parameter as it was given to the unit.
  static UnshardedParameter take_from(Unit& unit, const at::Tensor& parameter) {
    if (unit.runtime()) unit.runtime()->check_between_passes("fully_shard");
    auto all = unit.give_back();
    const auto taken =
        std::find_if(all.begin(), all.end(), [&](const UnshardedParameter& candidate) {
          return candidate.parameter.is_same(parameter);
        });
    auto result = std::move(*taken);
    all.erase(taken);
    unit.take(all);
    if (unit.groups().empty()) registry().keep_alive(unit.shared_from_this(), true);
    return result;
  }

  torch::nn::Module& module_;
  const std::vector<std::string>& patterns_;  // of parameters to ignore
  std::vector<std::pair<std::string, at::Tensor>> ignored_;
  std::vector<std::string> left_alone_;
  std::vector<UnshardedParameter> own_;
  std::vector<UnshardedParameter> shared_;
};

/// The buffers of a module and of those inside it that are no units, with their names.
void collect_buffers(
    const torch::nn::Module& module,
    const std::string& prefix,
    std::vector<std::pair<std::string, at::Tensor>>& result) {
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    result.emplace_back(prefix + item.key(), item.value());
  }
  for (const auto& child : module.named_children()) {
    if (find_unit(child.value().get())) continue;
    collect_buffers(*child.value(), prefix + child.key() + ".", result);
  }
}

/// Gives a buffer the values of the first rank of each axis, as parameters are given theirs, and
/// moves it to the world's device.
void take_values_of_first_rank(const at::Tensor& buffer, const Mesh& mesh, const DataAxes& axes) {
  const auto device = mesh.world().device();
  if (buffer.is_meta() || device.is_meta() || buffer.numel() == 0) return;
  const c10::NoGradGuard no_grad;
  const auto values = buffer.detach().to(device).contiguous();
  const auto bytes = values.view({-1}).view(at::kByte);  // whatever the dtype
  for (const auto& axis : {axes.inner, axes.outer}) {
    if (!axis.empty()) mesh.communicator(axis).broadcast(bytes, 0).synchronize();
  }
  if (buffer.device() != values.device()) {
    replace_data(buffer, values);
  } else if (!values.is_alias_of(buffer)) {
    buffer.detach().copy_(values);
  }
}

void check(const UnshardedParameter& candidate) {
  const auto& parameter = candidate.parameter;
  TORCH_CHECK_VALUE(
      !parameter.is_inference(), "[shard] parameter '", candidate.name,
      "' was made in c10::InferenceMode, and torch can't train it: build the model outside");
  TORCH_CHECK_VALUE(
      parameter.layout() == c10::kStrided, "[shard] parameter '", candidate.name, "' is ",
      parameter.layout(), ": only dense parameters can be sharded");
  TORCH_CHECK_VALUE(
      !parameter.requires_grad() || is_float16_or_wider(parameter.scalar_type()),
      "[shard] parameter '", candidate.name, "' is trainable and ", parameter.scalar_type(),
      ": use floating point of 16 bits or more, or freeze it");
}

/// Returns what is wrong with the cut that the rules give a parameter, or an empty text.
std::string fault_of_cut(const UnitSettings& settings, const UnshardedParameter& parameter) {
  try {
    settings.cut_of(parameter);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> names_of(const std::vector<UnshardedParameter>& candidates) {
  std::vector<std::string> names;
  for (const auto& candidate : candidates) names.push_back(candidate.name);
  return names;
}

void shard(
    const std::shared_ptr<torch::nn::Module>& module,
    const UnitOptions& options,
    const std::optional<RootOptions>& root) {
  const auto name = name_of(*module);
  if (const auto unit = find_unit(module.get())) {
    TORCH_CHECK_VALUE(
        false, "[shard] unit '", unit->name(), "' is sharded already: shard each module once");
  }
  TORCH_CHECK_VALUE(
      !root || root->prefetch_depth >= 0, "[shard] '", name, "': prefetch_depth is ",
      root->prefetch_depth, "; it must be 0 or more");
  const auto shared = options.mesh ? std::make_shared<const Mesh>(*options.mesh) : default_mesh();
  const auto& mesh = *shared;
  auto unit = std::make_shared<Unit>(UnitSettings(name, options, root, shared));
  const auto axes = unit->axes();
  unit->settings().check_mesh();
  Claim claim(*module, options.ignored);
  auto candidates = claim.candidates();
  std::string facts = "'" + name + "' with";
  std::string fault;  // of a cut: cuts alone differ between ranks, so one rank's may be wrong
  for (const auto& candidate : candidates) {
    check(candidate);
    if (const auto wrong = fault_of_cut(unit->settings(), candidate); !wrong.empty()) {
      fault = wrong;
      facts += " a wrong cut (" + wrong + ") of";
    }
    const auto& parameter = candidate.parameter;
    facts += c10::str(
        " ", candidate.name, " [", c10::Join(" ", parameter.sizes()), "] ", candidate.dtype,
        parameter.is_meta() ? " without values" : "");
  }
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  collect_buffers(*module, "", buffers);
  const auto& ignored = claim.ignored();
  buffers.insert(buffers.end(), ignored.begin(), ignored.end());
  for (const auto& [key, buffer] : buffers) {
    facts += c10::str(
        " ", key, " [", c10::Join(" ", buffer.sizes()), "] ", buffer.scalar_type(),
        buffer.is_meta() ? " without values" : "");
  }
  // Compare first: what is sent later has these sizes.
  for (const auto& axis : {axes.inner, axes.outer}) {
    if (axis.empty()) continue;
    require_same(mesh.communicator(axis), mesh.world().device(), "shard", facts);
  }
  TORCH_CHECK_VALUE(fault.empty(), fault);
  unit->take(candidates);
  unit->set_unmatched(find_unmatched(options, names_of(candidates), claim.left_alone()));
  for (const auto& [key, buffer] : buffers) take_values_of_first_rank(buffer, mesh, axes);
  for (const auto& [key, parameter] : ignored) registry().ignore(parameter);
  registry().add(module, unit);
}

}  // namespace

void fully_shard(ModuleRef module, const UnitOptions& options) {
  shard(module.share(), options, std::nullopt);
}

void fully_shard(ModuleRef module, const UnitOptions& options, const RootOptions& root) {
  shard(module.share(), options, root);
}

}  // namespace sherd
