// SPDX-License-Identifier: Apache-2.0
// Saves a model under every strategy, or loads all that was saved under some strategies (or all),
// saves it again and compares: matrix_program save|load|load_all FOLDER (under mpirun, on any
// number of ranks)
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "checkpoint/safetensors.h"
#include "checkpoint/small_model.h"
#include "sherd/checkpoint/checkpoint.h"

namespace {

namespace fs = std::filesystem;
using namespace sherd;
using sherd::testing::Subject;

struct ShardingCase {
  std::string name;
  UnitOptions options;
};

std::vector<ShardingCase> ways(const World& world) {
  std::vector<ShardingCase> result;
  const Mesh one(world, {{"dp", world.size()}});
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"}) {
    result.push_back({strategy, {.mesh = one, .placement = Placement(strategy_from(strategy))}});
  }
  result.push_back({"bf16", {.mesh = one, .precision = Precision::recipe("bf16_o2")}});
  result.push_back(
      {"bf16_optim",
       {.mesh = one,
        .placement = Placement(Strategy::optim),
        .precision = Precision::recipe("bf16_o2")}});
  if (world.size() % 2 != 0) return result;
  const Mesh two(world, {{"dp_outer", 2}, {"dp", world.size() / 2}});
  for (const auto outer : {Strategy::no_shard, Strategy::optim}) {
    result.push_back(
        {outer == Strategy::optim ? "hfsdp" : "hsdp",
         {.mesh = two, .placement = Placement(Strategy::optim_grads_params, outer)}});
  }
  return result;
}

bool is_bf16(const std::string& name) {
  return name.find("bf16") != std::string::npos;
}

SaveOptions save_options(const std::string& name) {
  SaveOptions options;
  options.numbers = {{"step", 2}, {"samples", 8}};
  if (is_bf16(name)) options.export_dtype = at::kBFloat16;
  return options;
}

/// The tensors of some files of a checkpoint, in fp32: main weights, or those of the model where it
/// has them in the same dtype; moments by the file's name.
std::map<std::string, at::Tensor> tensors(const fs::path& folder) {
  std::map<std::string, at::Tensor> result;
  for (const char* kind : {"model-", "main-", "first_moment-", "second_moment-"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const auto name = entry.path().filename().string();
      if (!name.starts_with(kind)) continue;
      const SafetensorsFile file(entry.path().string());
      const std::string prefix = name.find("moment") == std::string::npos ? "" : kind;
      for (const auto& [tensor, about] : file.tensors()) {
        result[prefix + tensor] = file.read(tensor).to(at::kFloat);
      }
    }
  }
  return result;
}

bool same_tensors(const fs::path& one, const fs::path& other) {
  const auto a = tensors(one);
  const auto b = tensors(other);
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](auto& x, auto& y) {
           return x.first == y.first && at::equal(x.second, y.second);
         });
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void save_all(const World& world, const fs::path& folder) {
  for (const auto& way : ways(world)) {
    Subject subject(world, way.options, 1);
    for (int64_t i = 0; i < 2; ++i) subject.step(i);
    const auto path = folder / (std::to_string(world.size()) + "-" + way.name);
    save(subject.model, *subject.optimizer, path.string(), save_options(way.name));
    const double third = subject.step(2);
    const double fourth = subject.step(3);
    if (world.rank() == 0)
      std::ofstream(path.string() + ".losses") << std::hexfloat << third << ' ' << fourth;
  }
}

/// The ways that a checkpoint is loaded in: all, or two of them. On 2 and 4 ranks, those for the
/// checkpoints of one way, saved on different numbers of ranks, are together all ways.
std::vector<ShardingCase> ways_for(const World& world, const fs::path& saved, bool all) {
  auto result = ways(world);
  if (all) return result;
  const auto name = saved.filename().string();
  const auto ranks = static_cast<size_t>(std::stoll(name));
  static const std::vector<std::string> names{
      "no_shard", "optim",      "optim_grads", "optim_grads_params",
      "bf16",     "bf16_optim", "hsdp",        "hfsdp"};
  const auto way = static_cast<size_t>(
      std::find(names.begin(), names.end(), name.substr(name.find('-') + 1)) - names.begin());
  const size_t first = way + ranks + static_cast<size_t>(world.size()) / 2;
  return {result[first % result.size()], result[(first + result.size() / 2) % result.size()]};
}

/// The number of checkpoints that differ.
int load_saved(const World& world, const fs::path& folder, bool all) {
  std::vector<fs::path> saved;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && entry.path().extension() != ".again") saved.push_back(entry.path());
  }
  std::sort(saved.begin(), saved.end());
  int wrong = 0;
  for (const auto& path : saved) {
    for (const auto& way : ways_for(world, path, all)) {
      Subject subject(world, way.options, 99);
      const auto state = load(subject.model, *subject.optimizer, path.string());
      const auto again = path.string() + ".again";
      save(subject.model, *subject.optimizer, again, save_options(path.filename().string()));
      bool same = state.numbers.at("step") == 2 && state.numbers.at("samples") == 8 &&
                  subject.optimizer->updates() == 2;
      same = same && same_tensors(path, again);
      double third = 0, fourth = 0;
      std::sscanf(content(path.string() + ".losses").c_str(), "%la %la", &third, &fourth);
      const double a = subject.step(2) / third - 1;
      const double b = subject.step(3) / fourth - 1;
      // The same weights have another loss in another precision.
      const bool comparable = is_bf16(path.filename().string()) == is_bf16(way.name);
      same = same && (!comparable || (std::abs(a) < 1e-5 && std::abs(b) < 1e-5));
      if (!same && world.rank() == 0) {
        std::cout << path.filename().string() << " is another one for " << world.size()
                  << " ranks, " << way.name << " (losses " << a << ", " << b << " apart)\n";
      }
      wrong += !same;
    }
  }
  if (world.rank() == 0) std::cout << saved.size() << " checkpoints, " << wrong << " wrong\n";
  return saved.empty() ? 1 : wrong;
}

}  // namespace

int main(int, char** argv) {
  // Less than the test waits for this program, so that the operation that waits is named.
  const auto world = World::from_environment(
      {.backend = Backend::mpi, .operation_timeout = std::chrono::seconds(100)});
  const std::string what = argv[1];
  if (what == "save") {
    save_all(world, argv[2]);
    return 0;
  }
  return load_saved(world, argv[2], what == "load_all") == 0 ? 0 : 1;
}
