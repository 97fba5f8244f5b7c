// SPDX-License-Identifier: Apache-2.0
#include "door.h"
#include "sherd/version.h"

PYBIND11_MODULE(_C, module) {
  using namespace sherd::python;
  bind_errors(module);
  bind_ranks(module);
  bind_mirror(module);
  bind_options(module);
  bind_program(module);
  bind_training(module);
  bind_optimizer(module);
  bind_checkpoint(module);
  bind_diagnostics(module);
  module.def("version_text", &sherd::version_text);
}
