// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "mirror.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/late_options.h"

namespace sherd::python {
namespace {

using Dtype = std::optional<c10::ScalarType>;
using SpreadWords = std::pair<std::string, std::string>;

Spread spread_of(const std::string& word) {
  return choose<Spread>(
      "a spread", word, {{"replicate", Spread::replicate}, {"shard", Spread::shard}});
}

Spreads spreads_of(const SpreadWords& words) {
  return {spread_of(words.first), spread_of(words.second)};
}

Fp8 fp8_of(const std::string& word) {
  return choose<Fp8>(
      "fp8", word,
      {{"none", Fp8::none},
       {"rows", Fp8::rows},
       {"rows_wgrad16", Fp8::rows_wgrad16},
       {"blocks", Fp8::blocks},
       {"mx", Fp8::mx}});
}

std::string text_of(const Precision& precision) {
  std::string text = "Precision(";
  for (const auto& [name, dtype] : std::initializer_list<std::pair<const char*, Dtype>>{
           {"compute", precision.compute},
           {"main", precision.main},
           {"gradient", precision.gradient},
           {"reduce", precision.reduce},
           {"autocast", precision.autocast}}) {
    if (dtype) text += c10::str(name, "=", *dtype, ", ");
  }
  return text + "cast_inputs=" + (precision.cast_inputs ? "True" : "False") + ")";
}

void bind_precision(py::module_& module) {
  py::class_<Precision>(
      module, "Precision",
      "The dtypes of a parameter's roles (mixed precision); dtypes that are not given have the "
      "defaults described in docs/numerics.md.")
      .def(
          py::init([](Dtype compute, Dtype main, Dtype gradient, Dtype reduce, Dtype autocast,
                      bool cast_inputs, const std::string& fp8) {
            return Precision{compute, main, gradient, reduce, autocast, cast_inputs, fp8_of(fp8)};
          }),
          py::kw_only(), py::arg("compute") = py::none(), py::arg("main") = py::none(),
          py::arg("gradient") = py::none(), py::arg("reduce") = py::none(),
          py::arg("autocast") = py::none(), py::arg("cast_inputs") = true, py::arg("fp8") = "none")
      .def_static("recipe", &Precision::recipe, py::arg("name"), "A usual combination by name.")
      .def_static("recipes", &Precision::recipes, "The names of the usual combinations.")
      .def_readonly("compute", &Precision::compute)
      .def_readonly("main", &Precision::main)
      .def_readonly("gradient", &Precision::gradient)
      .def_readonly("reduce", &Precision::reduce)
      .def_readonly("autocast", &Precision::autocast)
      .def_readonly("cast_inputs", &Precision::cast_inputs)
      .def("__repr__", &text_of);
}

void bind_placement(py::module_& module) {
  py::class_<Placement>(
      module, "Placement", "Which of parameters, gradients and optimizer state are sharded.")
      .def(
          py::init([](const std::string& inner, const std::string& outer) {
            return Placement(strategy_from(inner), strategy_from(outer));
          }),
          py::arg("inner"), py::arg("outer") = "no_shard",
          "A strategy for each data-parallel axis: 'no_shard', 'optim', 'optim_grads' or "
          "'optim_grads_params'.")
      .def_static(
          "of_roles",
          [](const SpreadWords& parameter, const SpreadWords& gradient,
             const SpreadWords& optimizer) {
            return Placement(Placement::Roles{
                spreads_of(parameter), spreads_of(gradient), spreads_of(optimizer)});
          },
          py::kw_only(), py::arg("parameter"), py::arg("gradient"), py::arg("optimizer"),
          "'replicate' or 'shard' over the inner and the outer axis, for each role.")
      .def("__repr__", &Placement::to_text);
  py::class_<Granule>(module, "Granule", "The smallest piece that a parameter may be cut into.")
      .def_static("element", &Granule::element)
      .def_static("rows", &Granule::rows, py::arg("count") = 1)
      .def_static("block", &Granule::block, py::arg("elements"))
      .def_static("whole", &Granule::whole);
}

void bind_rules(py::module_& module) {
  py::class_<Cut>(module, "Cut", "The part of a whole parameter that a rank's parameter is.")
      .def(
          py::init([](const std::vector<int64_t>& shape, int64_t dim,
                      const std::vector<std::pair<int64_t, int64_t>>& ranges) {
            Cut cut{.shape = shape, .dim = dim, .ranges = {}};
            for (const auto& [begin, end] : ranges) cut.ranges.push_back({begin, end});
            return cut;
          }),
          py::arg("shape"), py::arg("dim"), py::arg("ranges"),
          "`shape` of the whole, and the ranges [begin, end) along `dim` that this rank has.")
      .def("__repr__", [](const Cut& cut) { return to_text(cut); });
  py::class_<ParameterRule>(module, "ParameterRule")
      .def(py::init([](const std::string& match) { return ParameterRule{.match = match}; }))
      .def_readwrite("mesh", &ParameterRule::mesh)
      .def_readwrite("placement", &ParameterRule::placement)
      .def_readwrite("granule", &ParameterRule::granule)
      .def_readwrite("precision", &ParameterRule::precision)
      .def_readwrite("cut", &ParameterRule::cut)
      .def("set_axes", [](ParameterRule& rule, const std::string& inner, const std::string& outer) {
        rule.axes = DataAxes{inner, outer};
      });
}

RootOptions root_options(
    int64_t prefetch_depth,
    const std::string& loss,
    const std::string& memory,
    bool symmetric,
    int64_t budget) {
  RootOptions options;
  options.prefetch_depth = prefetch_depth;
  options.loss = choose<Loss>(
      "loss", loss, {{"mean", Loss::mean}, {"sum", Loss::sum}, {"per_token", Loss::per_token}});
  options.memory = choose<MemoryKind>(
      "memory", memory, {{"planned", MemoryKind::planned}, {"eager", MemoryKind::eager}});
  options.symmetric = symmetric;
  options.budget = budget;
  return options;
}

std::vector<std::shared_ptr<torch::nn::Module>> modules_of(const std::vector<MirrorPtr>& mirrors) {
  return {mirrors.begin(), mirrors.end()};
}

void shard(
    const MirrorPtr& module,
    const Mesh& mesh,
    const std::optional<std::pair<std::string, std::string>>& axes,
    const Placement& placement,
    const Precision& precision,
    bool keep_gathered,
    const std::vector<MirrorPtr>& prefetch,
    const std::vector<MirrorPtr>& backward_prefetch,
    const std::vector<std::string>& ignored,
    const std::vector<ParameterRule>& rules,
    const std::optional<RootOptions>& root) {
  UnitOptions options{.mesh = mesh};
  if (axes) options.axes = DataAxes{axes->first, axes->second};
  options.placement = placement;
  options.precision = precision;
  options.keep_gathered = keep_gathered;
  options.prefetch = modules_of(prefetch);
  options.backward_prefetch = modules_of(backward_prefetch);
  options.ignored = ignored;
  options.rules = rules;
  if (root) {
    fully_shard(module, options, *root);
  } else {
    fully_shard(module, options);
  }
  module->keep_unit();
}

using Mirrors = std::optional<std::vector<MirrorPtr>>;

void change(
    const MirrorPtr& unit,
    std::optional<bool> keep_gathered,
    const Mirrors& prefetch,
    const Mirrors& backward_prefetch,
    const std::optional<RootOptions>& root) {
  LateOptions options{.keep_gathered = keep_gathered};
  if (prefetch) options.prefetch = modules_of(*prefetch);
  if (backward_prefetch) options.backward_prefetch = modules_of(*backward_prefetch);
  options.root = root;
  change_options(*unit, options);
}

}  // namespace

void bind_options(py::module_& module) {
  bind_precision(module);
  bind_placement(module);
  bind_rules(module);
  py::class_<RootOptions>(module, "RootOptions")
      .def(
          py::init(&root_options), py::kw_only(), py::arg("prefetch_depth"), py::arg("loss"),
          py::arg("memory"), py::arg("symmetric"), py::arg("budget"));
  module.def(
      "fully_shard", &shard, py::arg("module"), py::kw_only(), py::arg("mesh"), py::arg("axes"),
      py::arg("placement"), py::arg("precision"), py::arg("keep_gathered"), py::arg("prefetch"),
      py::arg("backward_prefetch"), py::arg("ignored"), py::arg("rules"), py::arg("root"),
      Outside());
  module.def(
      "change_options", &change, py::arg("unit"), py::kw_only(),
      py::arg("keep_gathered") = py::none(), py::arg("prefetch") = py::none(),
      py::arg("backward_prefetch") = py::none(), py::arg("root") = py::none(), Outside());
}

}  // namespace sherd::python
