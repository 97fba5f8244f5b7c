// SPDX-License-Identifier: Apache-2.0
// How fast 1 GiB of state is saved and loaded, beside what dd writes there, and how much memory
// that takes: mpirun -n 4 checkpoint_speed FOLDER
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "sherd/sherd.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t own_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::atoll(line.c_str() + 8);
  }
  return 0;
}

/// How far this process's own memory grows while it lives.
class Growth {
 public:
  Growth() : before_(own_kib()), watcher_([this] { watch(); }) {}
  ~Growth() {
    stop_ = true;
    watcher_.join();
  }
  double mib() const { return static_cast<double>(most_ - before_) / 1024; }

 private:
  void watch() {
    while (!stop_) {
      most_ = std::max<int64_t>(most_, own_kib());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  int64_t before_;
  std::atomic<int64_t> most_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread watcher_;
};

struct BlockImpl : torch::nn::Module {
  BlockImpl() { weight = register_parameter("weight", at::empty({2796, 4000})); }
  at::Tensor forward(const at::Tensor& x) { return x + weight.sum(); }
  at::Tensor weight;
};
SHERD_MODULE(Block);

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Block> blocks;
};
SHERD_MODULE(Stack);

}  // namespace

int main(int, char** argv) {
  const auto world = sherd::World::from_environment({.device = c10::kCPU});
  const std::string folder = std::string(argv[1]) + "/checkpoint";
  const sherd::UnitOptions options{.mesh = sherd::Mesh(world, {{"dp", world.size()}})};
  Stack model{nullptr};
  {
    const sherd::MetaDevice meta;
    model = Stack();
  }
  for (auto& block : model->blocks) sherd::fully_shard(block, options);
  sherd::fully_shard(model, options);
  sherd::initialise(
      model, {.values = [](const auto&, auto) { return sherd::InitialValues::normal(0, 1); }});
  sherd::AdamW optimizer(model);
  const double mib = 8.0 * 2796 * 4000 * 12 / (1 << 20);
  for (int turn = 0; turn < 3; ++turn) {
    double dd = 0;
    if (world.rank() == 0) {
      const auto file = std::string(argv[1]) + "/dd";
      const auto command = "dd if=/dev/zero of=" + file +
                           " bs=1M count=" + std::to_string(static_cast<int>(mib)) +
                           " conv=fsync 2>/dev/null";
      const auto begin = Clock::now();
      if (std::system(command.c_str()) != 0) return 1;
      dd = mib / seconds_since(begin);
      unlink(file.c_str());
    }
    world.communicator().barrier().synchronize();
    const auto begin = Clock::now();
    double growth = 0;
    {
      const Growth watch;
      sherd::save(model, optimizer, folder);
      growth = watch.mib();
    }
    const double save = mib / seconds_since(begin);
    const auto middle = Clock::now();
    double load_growth = 0;
    {
      const Growth watch;
      sherd::load(model, optimizer, folder);
      load_growth = watch.mib();
    }
    if (world.rank() != 0) continue;
    std::cout << mib << " MiB on " << world.size() << " ranks: dd " << dd << " MiB/s, saved at "
              << save << " (" << save / dd << "), " << growth << " MiB of memory; loaded at "
              << mib / seconds_since(middle) << ", " << load_growth << " MiB" << std::endl;
  }
  return 0;
}
