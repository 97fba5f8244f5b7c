// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <sherd/sherd.h>

#include <iostream>

int main() {
  const auto world = sherd::World::emulated({.rank = 1, .size = 4});
  const sherd::Mesh mesh(world, {{"dp", 4}});
  const auto layout = std::make_shared<sherd::Layout>(
      sherd::Layout::build({{"weight", {6, 4}}, {"bias", {6}}}, {.shards = 4}));
  const sherd::Spreads sharded{sherd::Spread::shard, sherd::Spread::replicate};
  sherd::DBuffer shard(layout, sharded, mesh, {}, at::ones({layout->part_size(4)}));
  sherd::DBuffer full(layout, {}, mesh, {}, at::zeros({layout->full_size()}));
  shard.redistribute(full).wait();
  std::cout << "weight sums to " << full.view(0).sum().item<float>() << '\n';
  return 0;
}
