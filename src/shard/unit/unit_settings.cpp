// SPDX-License-Identifier: Apache-2.0
#include "shard/unit/unit_settings.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <numeric>
#include <tuple>
#include <utility>

#include "kernels/cast_copy.h"
#include "kernels/fp8/scaled_product.h"
#include "shard/glob.h"

namespace sherd {
namespace {

DataAxes default_axes(const Mesh& mesh) {
  return {"dp", mesh.has("dp_outer") ? "dp_outer" : ""};
}

int64_t next_sequence() {
  static std::atomic<int64_t> units{0};
  return units++;
}

/// Dtypes that our kernels can't add or cast are refused before anything is changed.
void check_dtypes(const GroupTraits& traits, const std::string& name) {
  if (!traits.trainable) return;
  const auto& [model, main, gradient, reduce] = traits.dtypes;
  for (const auto& [role, dtype] :
       {std::pair("compute", model), std::pair("main weight", main),
        std::pair("main gradient", gradient), std::pair("reduce", reduce)}) {
    TORCH_CHECK_VALUE(
        is_float16_or_wider(dtype), "[shard] parameter '", name, "' is trainable, and its ", role,
        " dtype is ", dtype, ": use floating point of 16 bits or more, or freeze it");
  }
}

/// A weight in fp8 is a trainable matrix whose blocks fit.
void check_fp8(const UnshardedParameter& parameter, Fp8 recipe, const GroupTraits& traits) {
  const auto& sizes = parameter.parameter.sizes();
  const int64_t multiple = recipe == Fp8::blocks ? 128 : recipe == Fp8::mx ? 32 : 16;
  TORCH_CHECK_VALUE(
      sizes[0] > 0 && sizes[1] > 0 && sizes[0] % multiple == 0 && sizes[1] % multiple == 0,
      "[shard] the products of parameter '", parameter.name,
      "' are to be in fp8, but its shape is ", sizes, ": both dims must be multiples of ", multiple,
      " with this recipe; keep it in the compute dtype with a ParameterRule (in a training file: "
      "precision.keep = [\"*",
      parameter.name, "\"])");
  const auto& dtypes = traits.dtypes;
  for (const auto& [role, dtype] :
       {std::pair("compute", traits.compute), std::pair("main weight", dtypes.main),
        std::pair("main gradient", dtypes.gradient), std::pair("reduce", dtypes.reduce)}) {
    TORCH_CHECK_VALUE(
        dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
        "[shard] the products of parameter '", parameter.name, "' are to be in fp8, and its ", role,
        " dtype is ", dtype, ": use fp32, bf16 or fp16");
  }
}

/// Rows that a cut may not divide.
Granule whole_blocks(const Granule& granule, const UnshardedParameter& parameter, Fp8 recipe) {
  const int64_t rows = recipe == Fp8::blocks ? 128 : recipe == Fp8::mx ? 32 : 0;
  if (rows == 0 || granule.is_whole()) return granule;
  const auto sizes = parameter.parameter.sizes();
  return Granule::block(std::lcm(granule.elements(sizes), rows * sizes[1]));
}

/// `whose`: the parameter or unit that has the mesh.
void check_data_parallel(const Mesh& mesh, const DataAxes& axes, const std::string& whose) {
  const auto& [inner, outer] = std::tie(axes.inner, axes.outer);
  TORCH_CHECK_VALUE(
      mesh.has(inner) && (outer.empty() || mesh.has(outer)), "[shard] ", whose,
      " is to be sharded over the axes '", inner, "' and '", outer,
      "', which its mesh does not have: name its data-parallel axes in options.axes");
  for (const auto& axis : mesh.axes()) {
    // Ranks along another axis might hold the same elements or other parts: the mesh does not say.
    TORCH_CHECK_VALUE(
        axis.size == 1 || axis.name == inner || axis.name == outer, "[shard] ", whose,
        " has a mesh with the axis '", axis.name, "' of ", axis.size,
        " ranks, which is not data-parallel: where ranks along it hold the same elements, make it "
        "part of a data-parallel axis with Mesh::flatten; where they hold other parts, leave it "
        "out with Mesh::sub and give the parameters a ParameterRule::cut");
  }
}

void check_axes(const GroupTraits& traits, const std::string& name) {
  check_data_parallel(traits.mesh, traits.axes, "parameter '" + name + "'");
  if (!traits.axes.outer.empty()) return;
  // Without an outer axis nothing can be spread over one.
  const auto& optimizer = traits.placement.spreads(Role::optimizer);
  TORCH_CHECK_VALUE(
      optimizer.outer == Spread::replicate, "[shard] parameter '", name,
      "' is to be sharded over an outer axis (", traits.placement.to_text(),
      "), but none is named: give the mesh an axis 'dp_outer', or name one in options.axes");
}

}  // namespace

UnitSettings::UnitSettings(
    std::string name,
    UnitOptions options,
    std::optional<RootOptions> root_options,
    std::shared_ptr<const Mesh> mesh)
    : name_(std::move(name)),
      options_(std::move(options)),
      root_options_(root_options),
      prefetch_(options_.prefetch.begin(), options_.prefetch.end()),
      backward_prefetch_(options_.backward_prefetch.begin(), options_.backward_prefetch.end()),
      mesh_(std::move(mesh)),
      axes_(options_.axes.value_or(default_axes(*mesh_))),
      sequence_(next_sequence()) {
  options_.prefetch.clear();
  options_.backward_prefetch.clear();
}

void UnitSettings::change(const LateOptions& options) {
  if (options.keep_gathered) options_.keep_gathered = *options.keep_gathered;
  if (options.prefetch) prefetch_.assign(options.prefetch->begin(), options.prefetch->end());
  if (options.backward_prefetch) {
    backward_prefetch_.assign(options.backward_prefetch->begin(), options.backward_prefetch->end());
  }
  if (options.root) root_options_ = options.root;
}

void UnitSettings::check_no_root_options(const std::string& root) const {
  if (!root_options_) return;
  const RootOptions defaults;
  std::string set;
  const auto add = [&](const char* name, bool changed) {
    if (changed) set += (set.empty() ? "" : ", ") + std::string(name);
  };
  add("prefetch_depth", root_options_->prefetch_depth != defaults.prefetch_depth);
  add("loss", root_options_->loss != defaults.loss);
  add("memory", root_options_->memory != defaults.memory);
  add("symmetric", root_options_->symmetric != defaults.symmetric);
  add("budget", root_options_->budget != defaults.budget);
  TORCH_CHECK_VALUE(
      false, "[shard] unit '", name_, "' has root options", set.empty() ? "" : " (" + set + ")",
      ", but it is inside '", root, "', whose options count: give them to fully_shard of '", root,
      "' only");
}

void UnitSettings::check_mesh() const {
  check_data_parallel(*mesh_, axes_, "'" + name_ + "'");
}

std::optional<Cut> UnitSettings::cut_of(const UnshardedParameter& parameter) const {
  auto cut = parameter.cut;
  for (const auto& rule : options_.rules) {
    if (rule.cut && matches_glob(rule.match, parameter.name)) cut = rule.cut;
  }
  if (!cut) return cut;
  check_cut(*cut, parameter.name);
  const auto shape = part_shape(*cut);
  const auto sizes = parameter.parameter.sizes();
  TORCH_CHECK_VALUE(
      sizes == c10::IntArrayRef(shape), "[shard] parameter '", parameter.name, "' has the shape ",
      sizes, ", but its cut (", to_text(*cut), ") has the shape ", c10::IntArrayRef(shape),
      ": build the module with this rank's part, or correct ParameterRule::cut");
  return cut;
}

Granule UnitSettings::granule_of(const UnshardedParameter& parameter) const {
  auto granule = parameter.granule;
  for (const auto& rule : options_.rules) {
    if (rule.granule && matches_glob(rule.match, parameter.name)) granule = *rule.granule;
  }
  return whole_blocks(granule, parameter, traits_of(parameter).fp8);
}

GroupTraits UnitSettings::traits_of(const UnshardedParameter& parameter) const {
  GroupTraits traits{
      .trainable = parameter.parameter.requires_grad(),
      .mesh = *mesh_,
      .axes = axes_,
      .placement = options_.placement};
  const auto* precision = &options_.precision;
  for (const auto& rule : options_.rules) {
    if (!matches_glob(rule.match, parameter.name)) continue;
    if (rule.mesh) {
      traits.mesh = *rule.mesh;
      traits.axes = default_axes(*rule.mesh);
    }
    if (rule.axes) traits.axes = *rule.axes;
    if (rule.placement) traits.placement = *rule.placement;
    if (rule.precision) precision = &*rule.precision;
  }
  traits.dtypes = resolve(*precision, parameter.dtype, traits.trainable);
  check_dtypes(traits, parameter.name);
  traits.compute = traits.dtypes.model;
  const bool is_matrix = parameter.parameter.dim() == 2 && c10::isFloatingType(parameter.dtype);
  if (precision->fp8 != Fp8::none && is_matrix && traits.trainable) {
    check_fp8(parameter, precision->fp8, traits);
    check_fp8_device(mesh_->world().device(), parameter.name);
    traits.fp8 = precision->fp8;
    traits.dtypes.model = at::kFloat8_e4m3fn;
  }
  check_axes(traits, parameter.name);
  return traits;
}

}  // namespace sherd
