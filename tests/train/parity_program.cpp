// SPDX-License-Identifier: Apache-2.0
// Trains a Hugging Face folder as one rank, and writes what parity_gpu.py compares with plain
// PyTorch: each step's loss, and the first step's gradients as Hugging Face names the tensors.
//   parity_program FOLDER TOKENS(uint32) --seq N --steps N --precision RECIPE
//                  --gradients OUT.safetensors --losses OUT.json [--device cpu|cuda]
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors.h"
#include "sherd/comm/world.h"
#include "sherd/models/pretrained.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace {

struct Arguments {
  std::string folder;
  std::string tokens;
  int64_t seq = 0;
  int64_t steps = 0;
  std::string precision;
  std::string gradients;
  std::string losses;
  sherd::WorldOptions world{};
};

Arguments read_arguments(std::span<char*> words) {
  TORCH_CHECK_VALUE(
      words.size() >= 2 && words.size() % 2 == 0,
      "[parity] a folder and a file of tokens, then pairs of --key and value");
  std::map<std::string, std::string> given;
  for (size_t i = 2; i < words.size(); i += 2) given[words[i]] = words[i + 1];
  const auto take = [&](const std::string& key) {
    const auto found = given.find(key);
    TORCH_CHECK_VALUE(found != given.end(), "[parity] ", key, " is missing");
    auto value = std::move(found->second);
    given.erase(found);
    return value;
  };
  Arguments arguments{
      words[0],
      words[1],
      std::stoll(take("--seq")),
      std::stoll(take("--steps")),
      take("--precision"),
      take("--gradients"),
      take("--losses")};
  if (given.contains("--device")) {
    const auto device = take("--device");
    TORCH_CHECK_VALUE(
        device == "cpu" || device == "cuda", "[parity] --device ", device, ": use cpu or cuda");
    arguments.world.backend = device == "cpu" ? sherd::Backend::mpi : sherd::Backend::nccl;
  }
  TORCH_CHECK_VALUE(given.empty(), "[parity] unknown argument ", given.begin()->first);
  TORCH_CHECK_VALUE(
      arguments.seq > 0 && arguments.steps > 0, "[parity] --seq and --steps must be above 0");
  return arguments;
}

/// `count` of them from the beginning of a file, int64.
at::Tensor read_tokens(const std::string& path, int64_t count) {
  std::vector<uint32_t> raw(static_cast<size_t>(count));
  std::ifstream file(path, std::ios::binary);
  file.read(
      reinterpret_cast<char*>(raw.data()),
      static_cast<std::streamsize>(raw.size() * sizeof(uint32_t)));
  TORCH_CHECK_VALUE(file, "[parity] ", path, " has less than ", count, " tokens of uint32");
  const auto tokens = at::empty({count}, at::kLong);
  std::copy(raw.begin(), raw.end(), tokens.mutable_data_ptr<int64_t>());
  return tokens;
}

/// A sharded Llama with the weights of a folder, and its parameters' shapes.
struct Loaded {
  std::shared_ptr<sherd::LanguageModel> model;
  std::map<std::string, std::vector<int64_t>> shapes;
};

Loaded load(const Arguments& arguments, const sherd::World& world) {
  Loaded result;
  {
    const sherd::MetaDevice meta;
    result.model = sherd::make_model(sherd::read_model_options(arguments.folder));
  }
  auto& model = *result.model;
  sherd::check_weights(model, arguments.folder);
  for (const auto& item : model.named_parameters()) {
    result.shapes[item.key()] = item.value().sizes().vec();
  }
  sherd::UnitOptions options;
  options.mesh = sherd::Mesh(world, {{"dp", world.size()}});
  options.precision = sherd::Precision::recipe(arguments.precision);
  if (options.precision.fp8 != sherd::Fp8::none) {
    for (const auto& products : model.products()) {
      options.rules.push_back({.match = products, .precision = options.precision});
    }
    options.precision.fp8 = sherd::Fp8::none;
  }
  for (const auto& unit : model.units()) sherd::fully_shard(unit, options);
  sherd::fully_shard(result.model, options);
  const auto values = [&](const std::string& name, at::IntArrayRef shape) {
    return model.initial_values(name, shape);
  };
  sherd::initialise(model, {.values = values});
  sherd::load_weights(model, arguments.folder);
  return result;
}

/// Packed parameters as the tensors that they consist of. Between the backward and the update.
void write_gradients(const Loaded& loaded, const std::string& path) {
  sherd::finish(*loaded.model);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, mine] : sherd::named_parameters(*loaded.model)) {
    const auto& gradient = mine.grad();
    TORCH_CHECK(
        gradient.defined() && gradient.scalar_type() == at::kFloat, "[parity] the gradient of ",
        name, " is not there in fp32");
    const auto whole = gradient.view(loaded.shapes.at(name));  // the only rank has all of it
    int64_t row = 0;
    for (const auto& slice : loaded.model->slices_of(name, whole.sizes())) {
      tensors.emplace_back(slice.tensor, whole.narrow(0, row, slice.shape[0]));
      row += slice.shape[0];
    }
    TORCH_CHECK(
        row == whole.size(0), "[parity] ", name, " has ", whole.size(0) - row, " more rows");
  }
  sherd::write_safetensors(path, tensors);
}

void write_losses(const std::vector<at::Tensor>& losses, const std::string& path) {
  std::ofstream file(path);
  file << std::setprecision(std::numeric_limits<double>::max_digits10) << '[';
  for (size_t i = 0; i < losses.size(); ++i) file << (i ? ", " : "") << losses[i].item<double>();
  file << "]\n";
  TORCH_CHECK(file.flush(), "[parity] ", path, " can't be written");
}

void run(const Arguments& arguments) {
  at::globalContext().setAllowTF32CuBLAS(false);
  const auto world = sherd::World::from_environment(arguments.world);
  TORCH_CHECK_VALUE(world.size() == 1, "[parity] ", world.size(), " ranks: start it alone");
  const auto loaded = load(arguments, world);
  const auto& model = loaded.model;
  sherd::AdamW optimizer(
      *model, {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
  const int64_t seq = arguments.seq;
  const auto tokens =
      read_tokens(arguments.tokens, arguments.steps * seq + 1).to(world.device()).unsqueeze(0);
  std::vector<at::Tensor> losses;  // not read before the end: a step doesn't wait for the host
  for (int64_t i = 0; i < arguments.steps; ++i) {
    const sherd::Batch batch{tokens.narrow(1, i * seq, seq), tokens.narrow(1, i * seq + 1, seq)};
    const auto loss = sherd::call(*model, batch) / static_cast<double>(seq);
    loss.backward();
    losses.push_back(loss.detach());
    if (i == 0) write_gradients(loaded, arguments.gradients);
    optimizer.step();
  }
  write_losses(losses, arguments.losses);
}

}  // namespace

int main(int argc, char** argv) {
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);
  try {
    run(read_arguments(std::span(argv, static_cast<size_t>(argc)).subspan(1)));
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
