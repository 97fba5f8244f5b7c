// SPDX-License-Identifier: Apache-2.0
// Timing must not matter: with random delays before every gather, reduction and computation the
// bits are those of a run without.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <random>
#include <thread>

#include "kernels/occupy.h"
#include "shard/registry.h"
#include "shard/runtime/runtime.h"
#include "shard/twin.h"

namespace sherd::testing {
namespace {

/// Up to 5 ms on the stream of a GPU; on CPU the host itself sleeps, less, for it does so alone.
class Delays {
 public:
  explicit Delays(uint64_t seed) : random_(seed) {
    const auto device = test_world().device();
    if (!device.is_cuda()) return;
    const auto options = at::TensorOptions().dtype(torch::kLong).device(device);
    clocks_ = torch::zeros({kClocks}, options);
    // Loading a kernel waits for those that run, and a collective may run for as long as its peers
    // take, so it is loaded now.
    const c10::Stream here = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    delay(1e-6, here);
    clocks_.cpu();
  }
  void operator()(Communicator::OnStream stream) {
    if (!stream) {
      const auto most = std::chrono::microseconds(200);
      std::this_thread::sleep_for(most * std::uniform_real_distribution<>()(random_));
      return;
    }
    // Half of them, so that the others overtake.
    if (random_() % 2 == 0) delay(5e-3 * std::uniform_real_distribution<>()(random_), *stream);
  }

 private:
  static constexpr int64_t kClocks = 1024;  // more than delays that are under way at once
  void delay(double seconds, c10::Stream stream) {
    const auto clock = clocks_.narrow(0, next_++ % kClocks, 1);
    note_time(clock, stream);
    occupy_until(clock, seconds, 1, stream);
  }

  std::mt19937_64 random_;
  at::Tensor clocks_;
  int64_t next_ = 0;
};

NamedTensors train(const ShardingCase& way, int64_t steps, bool disturbed) {
  Twin twin(options_for(way));
  micro_batches(twin.model, 2);
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(twin.model));
  const int64_t rank = test_world().rank();
  auto delays = std::make_shared<Delays>(static_cast<uint64_t>(rank) + 17);
  if (disturbed) {
    Runtime::of(*find_unit(twin.model.get()))
        ->streams()
        .set_disturbance([delays](Stream, Communicator::OnStream stream) { (*delays)(stream); });
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t micro_batch : {0, 1}) train_once(twin.model, rank, step, micro_batch);
    sherd::step(twin.model, *optimizer);
  }
  return full_parameters(twin.model);
}

class DisturbanceTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(DisturbanceTest, ARaceOnDoubleBuffersOrAStorageFreedTooEarlyWouldChangeBits) {
  const int64_t steps = test_world().device().is_cuda() ? 200 : 8;
  const auto undisturbed = train(GetParam(), steps, false);
  const auto disturbed = train(GetParam(), steps, true);
  ASSERT_EQ(undisturbed.size(), disturbed.size());
  for (size_t i = 0; i < undisturbed.size(); ++i) {
    ASSERT_TRUE(undisturbed[i].second.isfinite().all().item<bool>()) << undisturbed[i].first;
    EXPECT_TRUE(torch::equal(undisturbed[i].second, disturbed[i].second))
        << undisturbed[i].first << ": "
        << (undisturbed[i].second - disturbed[i].second).abs().max();
  }
}

std::vector<ShardingCase> some_ways() {
  std::vector<ShardingCase> some;
  for (auto& way : all_ways()) {
    if (way.name == "optim_grads" || way.name == "optim_grads_params" || way.name == "HFSDP") {
      some.push_back(std::move(way));
    }
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DisturbanceTest, ::testing::ValuesIn(some_ways()), [](const auto& way) {
      return way.param.name;
    });

}  // namespace
}  // namespace sherd::testing
