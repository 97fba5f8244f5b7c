// SPDX-License-Identifier: Apache-2.0
#include "mirror.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <typeindex>
#include <unordered_set>

#include "sherd/shard/boundary.h"
#include "sherd/shard/initialise.h"
#include "sherd/shard/recomputed_calls.h"
#include "sherd/shard/shards.h"

namespace sherd::python {
namespace {

thread_local const py::function* reset_function = nullptr;

/// All Python modules have this one C++ type: its reset asks Python what to do.
void reset_in_python(torch::nn::Module& module) {
  TORCH_INTERNAL_ASSERT(reset_function, "a mirror is reset outside initialise()");
  const py::gil_scoped_acquire gil;
  (*reset_function)(dynamic_cast<Mirror&>(module).module());
}

/// Finds the tensors in a unit's result: in tuples, lists, dicts, dataclasses, and in the
/// attributes of other objects, at any depth. A class of which it finds none would be a silent
/// error: nothing would gather the unit's parameters for the backward.
class OutputWalk {
 public:
  void visit(PyObject* value) {
    if (value == Py_None || PyLong_Check(value) || PyFloat_Check(value) || PyUnicode_Check(value) ||
        PyBytes_Check(value)) {
      return;
    }
    if (THPVariable_Check(value)) {
      tensors_.push_back(THPVariable_Unpack(value));
      return;
    }
    if (PyTuple_Check(value) || PyList_Check(value)) return visit_sequence(value);
    if (!seen_.insert(value).second) return;
    if (PyDict_Check(value)) return visit_values(value);  // and what derives from it
    if (!PyType_Check(value) && !PyCallable_Check(value)) visit_attributes(value);
  }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  void visit_sequence(PyObject* value) {
    const auto count = PySequence_Fast_GET_SIZE(value);
    if (count == 0 || !seen_.insert(value).second) return;
    for (Py_ssize_t i = 0; i < count; ++i) visit(PySequence_Fast_GET_ITEM(value, i));
  }
  void visit_values(PyObject* dict) {
    PyObject* key = nullptr;
    PyObject* item = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &item)) visit(item);
  }
  void visit_attributes(PyObject* value) {
    const auto object = py::reinterpret_borrow<py::object>(value);
    if (py::hasattr(object, "__dict__")) {
      const py::object attributes = object.attr("__dict__");
      if (PyDict_Check(attributes.ptr())) visit_values(attributes.ptr());
    }
    if (!py::hasattr(object, "__slots__")) return;
    for (const auto& name :
         py::module_::import("copyreg").attr("_slotnames")(py::type::of(object))) {
      if (!py::hasattr(object, name)) continue;
      const py::object attribute = object.attr(name);
      visit(attribute.ptr());
    }
  }

  std::vector<at::Tensor> tensors_;
  std::unordered_set<PyObject*> seen_;
};

/// One call of a unit.
struct Call {
  UnitCall call;
};

Call enter(const MirrorPtr& mirror) {
  return {before_forward(*mirror)};
}

/// Names and tensors of an OrderedDict, in its order.
std::vector<std::pair<std::string, at::Tensor>> pairs_of(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& item : tensors) result.emplace_back(item.key(), item.value());
  return result;
}

std::vector<std::pair<std::string, MirrorPtr>> children_of(const Mirror& mirror) {
  std::vector<std::pair<std::string, MirrorPtr>> result;
  for (const auto& item : mirror.named_children()) {
    result.emplace_back(item.key(), std::dynamic_pointer_cast<Mirror>(item.value()));
  }
  return result;
}

/// Gives a tensor of the meta device memory on another one, without values. Tensor::set_data can't
/// leave the meta device.
void allocate(const at::Tensor& tensor, c10::Device device) {
  const auto data = at::empty(tensor.sizes(), tensor.options().device(device));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(data.getIntrusivePtr());
}

void leave(Call& call, const py::object& result) {
  OutputWalk walk;
  walk.visit(result.ptr());
  const OutsidePython outside;
  after_forward(call.call, walk.tensors());
}

}  // namespace

Mirror::Mirror(std::string name, const py::object& module)
    : torch::nn::Module(std::move(name)), module_(module) {}

Mirror::~Mirror() {
  const py::gil_scoped_acquire gil;
  module_ = py::weakref();
}

py::object Mirror::module() const {
  py::object found = module_();
  if (found.is_none()) throw py::value_error("[sherd] the module '" + name() + "' is gone");
  return found;
}

void Mirror::keep_unit() {
  unit_ = sherd::keep_unit(*this);
}

Mirror::ResetScope::ResetScope(const py::function& reset) {
  reset_function = &reset;
}
Mirror::ResetScope::~ResetScope() {
  reset_function = nullptr;
}

void bind_mirror(py::module_& module) {
  detail::register_reset(std::type_index(typeid(Mirror)), &reset_in_python);
  py::class_<Mirror, MirrorPtr>(module, "Mirror")
      .def(py::init<std::string, py::object>())
      .def(
          "add_parameter",
          [](Mirror& mirror, const std::string& name, const at::Tensor& tensor) {
            mirror.register_parameter(name, tensor, tensor.requires_grad());
          })
      .def(
          "add_buffer", [](Mirror& mirror, const std::string& name,
                           const at::Tensor& tensor) { mirror.register_buffer(name, tensor); })
      .def(
          "add_child", [](Mirror& mirror, const std::string& name,
                          const MirrorPtr& child) { mirror.register_module(name, child); })
      .def(
          "parameters",
          [](const Mirror& mirror) { return pairs_of(mirror.named_parameters(/*recurse=*/false)); })
      .def(
          "buffers",
          [](const Mirror& mirror) { return pairs_of(mirror.named_buffers(/*recurse=*/false)); })
      .def("children", &children_of);
  module.def("allocate", &allocate);

  py::class_<Call>(module, "Call").def_property_readonly("input_dtype", [](const Call& call) {
    return call.call.input_dtype();
  });
  module.def("enter", &enter, Outside());
  module.def("leave", &leave);
  module.def(
      "abandon", [](Call& call) { abandon(call.call); }, Outside());

  py::class_<RecomputedCalls>(module, "RecomputedCalls")
      .def(py::init<>())
      .def("begin_forward", &RecomputedCalls::begin_forward)
      .def("begin_again", &RecomputedCalls::begin_again)
      .def("end", &RecomputedCalls::end);
}

}  // namespace sherd::python
