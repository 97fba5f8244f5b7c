// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "door.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::python {
namespace {

void set_error(PyObject* type, const c10::Error& error) {
  PyErr_SetString(type, error.what_without_backtrace());
}

/// The same with an exception that torch's Python code defines.
void set_error_of_torch(const char* module, const char* name, const c10::Error& error) {
  set_error(py::module_::import(module).attr(name).ptr(), error);
}

/// The findings come with the error, so that a program can act on them.
void set_not_finite(const NotFiniteError& error) {
  const auto type = py::module_::import("sherd.diagnostics").attr("NotFiniteError");
  auto made = type(error.what_without_backtrace());
  made.attr("findings") = py::cast(error.findings());
  PyErr_SetObject(type.ptr(), made.ptr());
}

/// Sherd's exceptions as Python's: with Sherd's words, and without the C++ backtrace.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (python_error& error) {
    error.restore();
  } catch (const NotFiniteError& error) {
    set_not_finite(error);
  } catch (const c10::ValueError& error) {
    set_error(PyExc_ValueError, error);
  } catch (const c10::IndexError& error) {
    set_error(PyExc_IndexError, error);
  } catch (const c10::NotImplementedError& error) {
    set_error(PyExc_NotImplementedError, error);
  } catch (const c10::OutOfMemoryError& error) {
    set_error_of_torch("torch", "OutOfMemoryError", error);
  } catch (const c10::DistBackendError& error) {
    set_error_of_torch("torch.distributed", "DistBackendError", error);
  } catch (const c10::Error& error) {
    set_error(PyExc_RuntimeError, error);
  }
}

}  // namespace

void bind_errors(py::module_&) {
  py::register_local_exception_translator(&translate);
}

}  // namespace sherd::python
