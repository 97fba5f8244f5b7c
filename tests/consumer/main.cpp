// SPDX-License-Identifier: Apache-2.0
// The README's example, as a program of its own.
#include <sherd/sherd.h>
#include <torch/nn.h>

#include <iostream>

struct ModelImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x, torch::Tensor target) {
    return torch::mse_loss(last(torch::relu(first(x))), target);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 64));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(64, 1));
};
SHERD_MODULE(Model);  // instead of TORCH_MODULE

int main() {
  auto world = sherd::World::from_environment();  // mpirun, torchrun, srun, or alone
  sherd::Mesh mesh(world, {{"dp", world.size()}});
  torch::manual_seed(1);
  Model model;
  sherd::fully_shard(model, {.mesh = mesh});
  sherd::AdamW optimizer(model, {.rate = 1e-2});
  double before = 0, after = 0;
  for (int step = 0; step < 50; ++step) {
    auto x = torch::randn({32, 16}, world.device());
    auto loss = model(x, x.sum(1, /*keepdim=*/true));
    loss.backward();
    optimizer.step();
    after = loss.item<double>();
    if (step == 0) before = after;
  }
  if (world.rank() != 0) return 0;
  std::cout << "loss " << before << ", then " << after << '\n';
  if (after < before / 4) std::cout << "trained\n";
}
