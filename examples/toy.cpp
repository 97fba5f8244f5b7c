// SPDX-License-Identifier: Apache-2.0
// A small model, sharded over all ranks. Alone: build/release/bin/toy
// On four local ranks: .venv/bin/mpirun -n 4 --oversubscribe build/release/bin/toy
#include <sherd/sherd.h>
#include <torch/nn.h>

#include <iostream>

// Write modules as usual, with SHERD_MODULE in place of TORCH_MODULE: calls gather and release.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t dim) {
    up = register_module("up", torch::nn::Linear(dim, 4 * dim));
    down = register_module("down", torch::nn::Linear(4 * dim, dim));
  }
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
SHERD_MODULE(Block);

struct ToyImpl : torch::nn::Module {
  ToyImpl() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(32)));
    }
    head = register_module("head", torch::nn::Linear(32, 1));
  }
  torch::Tensor forward(torch::Tensor x, torch::Tensor target) {
    for (auto& block : blocks) x = block(x);
    return torch::mse_loss(head(x), target);  // the loss is computed inside the root
  }
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
SHERD_MODULE(Toy);

int main() {
  auto world = sherd::World::from_environment();  // mpirun, torchrun, srun, or alone
  sherd::Mesh mesh(world, {{"dp", world.size()}});
  torch::manual_seed(1);
  Toy model;
  for (auto& block : model->blocks) sherd::fully_shard(block, {.mesh = mesh});
  sherd::fully_shard(model, {.mesh = mesh});  // the root, last
  sherd::AdamW optimizer(model, {.lr = 3e-3, .max_norm = 1});
  if (world.rank() == 0) {
    const auto bytes = sherd::program(model).bytes();  // known before the first step
    std::cout << world.size() << " ranks, at rest " << bytes.rest() << " bytes, at peak "
              << bytes.peak() << " bytes\n";
  }
  torch::manual_seed(100 + world.rank());  // different data on every rank
  for (int step = 1; step <= 50; ++step) {
    auto x = torch::randn({64, 32}, world.device());
    auto loss = model(x, x.sin().sum(1, /*keepdim=*/true));
    loss.backward();
    optimizer.step();  // clips, updates, and the model computes with the new weights
    if (world.rank() == 0 && step % 10 == 0) {
      std::cout << "step " << step << ", loss " << loss.item<double>() << '\n';
    }
  }
}
