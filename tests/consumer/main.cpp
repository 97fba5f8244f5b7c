// SPDX-License-Identifier: Apache-2.0
// The README's example, as a program of its own.
#include <sherd/sherd.h>
#include <torch/nn.h>

#include <iostream>

struct BlockImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(64, 256));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(256, 64));
};
SHERD_MODULE(Block);  // in place of TORCH_MODULE

int main() {
  auto world = sherd::World::from_environment();  // mpirun, torchrun, srun, or alone
  torch::nn::Sequential model{Block(), Block(), Block()};
  for (auto& block : model->children()) sherd::fully_shard(block);  // inner modules first
  sherd::fully_shard(model);                                        // the root last
  sherd::AdamW optimizer(model, {.max_norm = 1});
  for (int step = 1; step <= 300; ++step) {
    auto x = torch::randn({32, 64}, world.device());
    auto loss = torch::mse_loss(sherd::call(model, x), x.flip(1));
    loss.backward();   // reduces the gradients
    optimizer.step();  // clips and updates
    if (world.rank() == 0 && step % 100 == 0) std::cout << "loss " << loss.item<double>() << '\n';
  }
}
