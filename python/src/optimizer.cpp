// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "mirror.h"
#include "sherd/optim/adamw.h"

namespace sherd::python {
namespace {

AdamWOptions adamw_options(
    double lr,
    std::pair<double, double> betas,
    double eps,
    double weight_decay,
    double max_norm,
    c10::ScalarType states,
    const std::vector<AdamWRule>& rules,
    const std::optional<LossScaling>& scaling) {
  return {
      .lr = lr,
      .beta1 = betas.first,
      .beta2 = betas.second,
      .eps = eps,
      .weight_decay = weight_decay,
      .max_norm = max_norm,
      .states = states,
      .rules = rules,
      .scaling = scaling};
}

void bind_options_of_adamw(py::module_& module) {
  using Number = std::optional<double>;
  py::class_<AdamWRule>(
      module, "AdamWRule",
      "Settings of AdamW for the parameters whose full names match a pattern; '*' matches any "
      "text. For each setting, the last matching rule wins.")
      .def(
          py::init([](const std::string& match, Number lr_factor, Number beta1, Number beta2,
                      Number eps, Number weight_decay) {
            return AdamWRule{match, lr_factor, beta1, beta2, eps, weight_decay};
          }),
          py::arg("match"), py::kw_only(), py::arg("lr_factor") = py::none(),
          py::arg("beta1") = py::none(), py::arg("beta2") = py::none(), py::arg("eps") = py::none(),
          py::arg("weight_decay") = py::none());
  py::class_<LossScaling>(
      module, "LossScaling", "Dynamic loss scaling for fp16, in place of torch's GradScaler.")
      .def(
          py::init([](double initial, double growth, double backoff, int64_t interval) {
            return LossScaling{initial, growth, backoff, interval};
          }),
          py::kw_only(), py::arg("initial") = 65536.0, py::arg("growth") = 2.0,
          py::arg("backoff") = 0.5, py::arg("interval") = 2000);
  py::class_<AdamW::Progress>(module, "Progress")
      .def(
          py::init([](int64_t updates, double loss_scale, int64_t healthy,
                      const std::map<std::string, int64_t>& missed) {
            return AdamW::Progress{updates, loss_scale, healthy, missed};
          }),
          py::kw_only(), py::arg("updates"), py::arg("loss_scale"), py::arg("healthy"),
          py::arg("missed"))
      .def_readonly("updates", &AdamW::Progress::updates)
      .def_readonly("loss_scale", &AdamW::Progress::loss_scale)
      .def_readonly("healthy", &AdamW::Progress::healthy)
      .def_readonly("missed", &AdamW::Progress::missed);
}

}  // namespace

void bind_optimizer(py::module_& module) {
  bind_options_of_adamw(module);
  py::class_<AdamW>(module, "AdamW")
      .def(
          py::init([](const MirrorPtr& model, double lr, std::pair<double, double> betas,
                      double eps, double weight_decay, double max_norm, c10::ScalarType states,
                      const std::vector<AdamWRule>& rules,
                      const std::optional<LossScaling>& scaling) {
            return std::make_unique<AdamW>(
                *model,
                adamw_options(lr, betas, eps, weight_decay, max_norm, states, rules, scaling));
          }),
          py::arg("model"), py::kw_only(), py::arg("lr"), py::arg("betas"), py::arg("eps"),
          py::arg("weight_decay"), py::arg("max_norm"), py::arg("states"), py::arg("rules"),
          py::arg("scaling"), Outside())
      .def(
          "step", [](AdamW& optimizer, std::optional<int64_t> tokens) { optimizer.step({tokens}); },
          Outside())
      .def("set_lr", &AdamW::set_lr, Outside())
      .def("set_tokens", &AdamW::set_tokens, Outside())
      .def("scale", &AdamW::scale, Outside())
      .def("updates", &AdamW::updates, Outside())
      .def("loss_scale", &AdamW::loss_scale, Outside())
      .def("gradient_norm", &AdamW::gradient_norm, Outside())
      .def("gradient_norm_on_device", &AdamW::gradient_norm_on_device, Outside())
      .def("progress", &AdamW::progress, Outside())
      .def("set_progress", &AdamW::set_progress, Outside())
      .def(
          "moments",
          [](const AdamW& optimizer) {
            std::map<std::string, std::pair<at::Tensor, at::Tensor>> result;
            for (const auto& one : optimizer.moments()) result[one.name] = {one.first, one.second};
            return result;
          })
      .def("allocated_bytes", [](const AdamW& optimizer) {
        const auto bytes = optimizer.allocated_bytes();
        return std::map<std::string, int64_t>{
            {"moments", bytes.moments}, {"control", bytes.control}};
      });
}

}  // namespace sherd::python
