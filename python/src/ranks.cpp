// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "door.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"

namespace sherd::python {
namespace {

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

WorldOptions world_options(
    const std::optional<std::string>& backend,
    const std::optional<c10::Device>& device,
    double start_timeout,
    double operation_timeout,
    bool high_priority_stream,
    int max_ctas,
    const std::string& interface) {
  WorldOptions options;
  if (backend) {
    options.backend = choose<Backend>(
        "backend", *backend,
        {{"mpi", Backend::mpi}, {"nccl", Backend::nccl}, {"tcp", Backend::tcp}});
  }
  if (device) options.device = device->type();
  options.start_timeout = to_milliseconds(start_timeout);
  options.operation_timeout = to_milliseconds(operation_timeout);
  options.high_priority_stream = high_priority_stream;
  options.max_ctas = max_ctas;
  options.interface = interface;
  return options;
}

void bind_world_options(py::module_& module) {
  const auto seconds = [](std::chrono::milliseconds time) {
    return static_cast<double>(time.count()) / 1000;
  };
  const WorldOptions defaults;
  py::class_<WorldOptions>(
      module, "WorldOptions",
      "Options of a world, equal on all ranks but for `interface`.\n\n"
      "backend: 'mpi', 'tcp' or 'nccl'; default: nccl on GPUs, on CPU mpi if the launcher starts "
      "MPI, else tcp.\n"
      "device: where the ranks' tensors are, 'cpu' or 'cuda'; default: a GPU if there is one.\n"
      "start_timeout: seconds to wait for all ranks to arrive.\n"
      "operation_timeout: seconds that an operation may take before it fails for good.\n"
      "high_priority_stream: nccl: operations run on a stream of high priority.\n"
      "max_ctas: nccl: largest number of CTAs of a collective; 0: NCCL's choice.\n"
      "interface: tcp: network interface or own address at which this rank listens; default: the "
      "environment variable SHERD_INTERFACE, else the address that reaches the store.")
      .def(
          py::init(&world_options), py::kw_only(), py::arg("backend") = py::none(),
          py::arg("device") = py::none(),
          py::arg("start_timeout") = seconds(defaults.start_timeout),
          py::arg("operation_timeout") = seconds(defaults.operation_timeout),
          py::arg("high_priority_stream") = defaults.high_priority_stream,
          py::arg("max_ctas") = defaults.max_ctas, py::arg("interface") = defaults.interface);
}

Reduction reduction_of(const std::string& word) {
  return choose<Reduction>(
      "the reduction", word,
      {{"sum", Reduction::sum()}, {"mean", Reduction::mean()}, {"max", Reduction::max()}});
}

std::vector<Axis> axes_of(const std::vector<std::pair<std::string, int64_t>>& given) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : given) axes.push_back({name, size});
  return axes;
}

void bind_world(py::module_& module) {
  py::class_<World>(module, "World", "All ranks of a run, and this one's place among them.")
      .def_static(
          "from_environment", &World::from_environment, py::arg("options") = WorldOptions(),
          Outside(),
          "The ranks that mpirun, torchrun or srun has started; without a launcher: this process "
          "alone. Collective.")
      .def_static(
          "over",
          [](c10d::ProcessGroup& group, const WorldOptions& options) {
            return World::over(
                c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(&group),
                options);
          },
          py::arg("group"), py::arg("options") = WorldOptions(), Outside(),
          "The ranks of a process group of torch.distributed: over its nccl backend if it has one "
          "and there is a GPU, else CPU ranks over tcp that meet at its store. Collective.")
      .def_static(
          "emulated",
          [](int64_t rank, int64_t size, c10::Device device,
             const std::optional<Network>& network) {
            return World::emulated(
                {.rank = rank, .size = size, .device = device, .network = network});
          },
          py::arg("rank"), py::arg("size"), py::arg("device") = c10::Device(c10::kCPU),
          py::arg("network") = py::none(),
          "One rank of a world without other processes: nothing is sent.")
      .def_static(
          "close", &World::close, Outside(),
          "Leaves all worlds of this process; happens by itself at the end of the process.")
      .def_property_readonly("rank", &World::rank)
      .def_property_readonly("size", &World::size)
      .def_property_readonly("local_rank", &World::local_rank)
      .def_property_readonly("local_size", &World::local_size)
      .def_property_readonly("device", &World::device)
      .def_property_readonly(
          "launcher", [](const World& world) { return to_text(world.launcher()); })
      .def_property_readonly(
          "backend", [](const World& world) { return world.communicator().backend(); })
      .def(
          "all_reduce",
          [](const World& world, const at::Tensor& tensor, const std::string& reduction) {
            world.communicator().all_reduce(tensor, reduction_of(reduction)).synchronize();
          },
          py::arg("tensor"), py::arg("reduction") = "sum", Outside(),
          "Reduces a tensor over all ranks in place ('sum', 'mean' or 'max'). Collective; blocks.")
      .def(
          "broadcast",
          [](const World& world, const at::Tensor& tensor, int64_t root) {
            world.communicator().broadcast(tensor, root).synchronize();
          },
          py::arg("tensor"), py::arg("root") = 0, Outside(),
          "Gives all ranks the values that a tensor has on rank `root`. Collective; blocks.")
      .def(
          "barrier", [](const World& world) { world.communicator().barrier().synchronize(); },
          Outside(), "Waits for all ranks.");
}

void bind_network(py::module_& module) {
  py::class_<Network>(module, "Network", "A description of a network, for plans.")
      .def(
          py::init([](const std::map<std::string, std::pair<double, double>>& axes, double latency,
                      double bandwidth, bool overlaps) {
            Network network{.axes = {}, .fallback = {latency, bandwidth}, .overlaps = overlaps};
            for (const auto& [name, link] : axes) network.axes[name] = {link.first, link.second};
            return network;
          }),
          py::arg("axes") = std::map<std::string, std::pair<double, double>>{},
          py::arg("latency") = 0.0, py::arg("bandwidth") = 0.0, py::arg("overlaps") = true,
          "`axes` has latency (seconds) and bandwidth (bytes per second that a rank sends) of mesh "
          "axes by name; other axes have the `latency` and `bandwidth` given.");
}

}  // namespace

void bind_ranks(py::module_& module) {
  bind_network(module);
  bind_world_options(module);
  bind_world(module);
  py::class_<Mesh>(module, "Mesh", "The ranks of a world as a grid with named axes.")
      .def(
          py::init(
              [](const World& world, const std::vector<std::pair<std::string, int64_t>>& axes) {
                return Mesh(world, axes_of(axes));
              }),
          py::arg("world"), py::arg("axes"), Outside(),
          "`axes` has name and number of ranks of each axis; the last varies fastest. Collective.")
      .def_property_readonly("world", &Mesh::world)
      .def_property_readonly(
          "axes",
          [](const Mesh& mesh) {
            std::vector<std::pair<std::string, int64_t>> axes;
            for (const auto& axis : mesh.axes()) axes.emplace_back(axis.name, axis.size);
            return axes;
          })
      .def_property_readonly("size", py::overload_cast<>(&Mesh::size, py::const_))
      .def("has", &Mesh::has, py::arg("axis"))
      .def(
          "axis_size", py::overload_cast<const std::string&>(&Mesh::size, py::const_),
          py::arg("axis"))
      .def("coordinate", &Mesh::coordinate, py::arg("axis"), "This rank's index along an axis.")
      .def("ranks", &Mesh::ranks, py::arg("axis"), "The ranks along an axis through this one.")
      .def("sub", &Mesh::sub, py::arg("axes"), "The mesh of some of the axes.")
      .def(
          "flatten", &Mesh::flatten, py::arg("axes"), py::arg("name"), Outside(),
          "A mesh in which one axis replaces several. Collective.");
}

}  // namespace sherd::python
