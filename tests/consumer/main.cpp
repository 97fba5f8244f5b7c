// SPDX-License-Identifier: Apache-2.0
// The README's example, as a program of its own.
#include <ATen/ATen.h>
#include <sherd/sherd.h>

#include <iostream>

int main() {
  auto world = sherd::World::from_environment();  // mpirun, torchrun, srun, or alone
  sherd::Mesh mesh(world, {{"dp", world.size()}});
  auto layout = std::make_shared<sherd::Layout>(
      sherd::Layout::build({{"weight", {4096, 1024}}, {"bias", {4096}}}, {.shards = world.size()}));
  auto options = at::TensorOptions().device(world.device());
  sherd::DBuffer shard(
      layout, {sherd::Spread::shard}, mesh, {},
      at::ones({layout->part_size(world.size())}, options));
  sherd::DBuffer full(layout, {}, mesh, {}, at::empty({layout->full_size()}, options));
  shard.redistribute(full).wait();  // an all-gather
  auto weight = full.view(0);       // 4096 × 1024
  if (world.rank() == 0) std::cout << "weight sums to " << weight.sum().item<int64_t>() << '\n';
  return 0;
}
