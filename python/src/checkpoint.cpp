// SPDX-License-Identifier: Apache-2.0
#include "sherd/checkpoint/checkpoint.h"

#include <pybind11/stl.h>

#include <set>

#include "mirror.h"
#include "sherd/checkpoint/inspect.h"

namespace sherd::python {
namespace {

using Names = std::set<std::string>;
using Texts = std::map<std::string, std::string>;
using Numbers = std::map<std::string, int64_t>;

/// Every parameter and buffer is a tensor of its own name, but those left out (buffers that are not
/// persistent).
SlicesOf slices_without(Names left_out) {
  return [left_out = std::move(left_out)](const std::string& name, at::IntArrayRef shape) {
    std::vector<TensorSlice> slices;
    if (!left_out.contains(name)) slices.push_back({.tensor = name, .shape = shape.vec()});
    return slices;
  };
}

SaveOptions save_options(
    Names left_out,
    std::optional<c10::ScalarType> export_dtype,
    const std::vector<std::string>& export_fp8,
    const Texts& texts,
    const Numbers& numbers) {
  return {
      .slices = slices_without(std::move(left_out)),
      .export_dtype = export_dtype,
      .export_fp8 = export_fp8,
      .texts = texts,
      .numbers = numbers};
}

/// `read` runs on a thread of Sherd's: an exception of Python's must not outlive the lock there.
void load_from(const MirrorPtr& model, Names left_out, const py::function& read) {
  const OutsidePython outside;
  load_elements(
      *model, slices_without(std::move(left_out)),
      [&read](const std::string& tensor, int64_t begin, int64_t count) {
        const py::gil_scoped_acquire gil;
        std::string error;
        try {
          return py::cast<at::Tensor>(read(tensor, begin, count));
        } catch (py::error_already_set& raised) {
          error = raised.what();
        }
        TORCH_CHECK_VALUE(false, "[checkpoint] reading tensor '", tensor, "': ", error);
      });
}

void bind_folders(py::module_& module) {
  module.def(
      "find_checkpoints", &find_checkpoints, py::arg("folder"),
      "The complete checkpoints `step-<number>` in a folder: (number, path), ascending.");
  module.def(
      "remove_checkpoint", &remove_checkpoint, py::arg("folder"),
      "Removes a checkpoint, or any other folder, with everything in it.");
  module.def(
      "keep_newest", &keep_newest, py::arg("folder"), py::arg("keep"), py::arg("newest"),
      "Removes all but the last `keep` complete checkpoints of a folder up to step `newest`.");
  module.def(
      "verify_checkpoint", &verify_checkpoint, py::arg("folder"), Outside(),
      "Reads every byte of a checkpoint and compares checksums; raises if one is wrong.");
  module.def(
      "describe_checkpoint", &describe_checkpoint, py::arg("folder"), Outside(),
      "A description of a checkpoint as text.");
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  bind_folders(module);
  py::class_<SaveOptions>(module, "SaveOptions")
      .def(
          py::init(&save_options), py::kw_only(), py::arg("left_out"), py::arg("export_dtype"),
          py::arg("export_fp8"), py::arg("texts"), py::arg("numbers"));
  module.def(
      "save",
      [](const MirrorPtr& model, const AdamW* optimizer, const std::string& folder,
         const SaveOptions& options) { save(*model, optimizer, folder, options); },
      Outside());
  module.def(
      "load",
      [](const MirrorPtr& model, AdamW* optimizer, const std::string& folder, Names left_out) {
        const LoadOptions options{.slices = slices_without(std::move(left_out))};
        return load(*model, optimizer, folder, options).numbers;
      },
      Outside());
  module.def("load_from", &load_from);

  py::class_<BackgroundSave>(module, "BackgroundSave")
      .def(py::init<>())
      .def(
          "reserve",
          [](BackgroundSave& save, const MirrorPtr& model, const AdamW* optimizer) {
            return save.reserve(*model, optimizer);
          },
          Outside())
      .def(
          "begin",
          [](BackgroundSave& save, const MirrorPtr& model, const AdamW* optimizer,
             const std::string& folder,
             const SaveOptions& options) { save.begin(*model, optimizer, folder, options); },
          Outside())
      .def("before_update", &BackgroundSave::before_update, Outside())
      .def("under_way", &BackgroundSave::under_way)
      .def("idle", &BackgroundSave::idle)
      .def("advance", &BackgroundSave::advance, Outside())
      .def("finish", &BackgroundSave::finish, Outside());
}

}  // namespace sherd::python
