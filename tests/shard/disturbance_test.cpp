// SPDX-License-Identifier: Apache-2.0
// Timing must not matter: with random delays before every gather, reduction and computation the
// bits are those of a run without.
#include <chrono>
#include <random>
#include <thread>

#include "kernels/occupy.h"
#include "shard/registry.h"
#include "shard/runtime.h"
#include "shard/twin.h"

namespace sherd::testing {
namespace {

/// Up to 5 ms on the stream of a GPU; on CPU the host itself sleeps, less, for it does so alone.
class Delays {
 public:
  explicit Delays(uint64_t seed) : random_(seed) {
    const auto device = test_world().device();
    if (device.is_cuda()) {
      clock_ = torch::zeros({1}, at::TensorOptions().dtype(torch::kLong).device(device));
    }
  }
  void operator()(Communicator::OnStream stream) {
    if (!stream) {
      const auto most = std::chrono::microseconds(200);
      std::this_thread::sleep_for(most * std::uniform_real_distribution<>()(random_));
      return;
    }
    // Half of them, so that the others overtake.
    if (random_() % 2 == 0) return;
    auto& clock = clocks_.emplace_back(torch::zeros_like(clock_));
    note_time(clock, *stream);
    occupy_until(clock, 5e-3 * std::uniform_real_distribution<>()(random_), 1, *stream);
  }

 private:
  std::mt19937_64 random_;
  at::Tensor clock_;
  std::vector<at::Tensor> clocks_;  // one each: delays on several streams overlap
};

NamedTensors train(const Way& way, int64_t steps, bool disturbed) {
  Twin twin(options_for(way));
  micro_batches(twin.model, 2);
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(twin.model));
  const int64_t rank = test_world().rank();
  auto delays = std::make_shared<Delays>(static_cast<uint64_t>(rank) + 17);
  if (disturbed) {
    Runtime::of(*find_unit(twin.model.get()))
        ->lanes()
        .set_disturbance([delays](Stream, Communicator::OnStream stream) { (*delays)(stream); });
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t micro_batch : {0, 1}) train_once(twin.model, rank, step, micro_batch);
    sherd::step(twin.model, *optimizer);
  }
  return full_parameters(twin.model);
}

class DisturbanceTest : public ::testing::TestWithParam<Way> {};

TEST_P(DisturbanceTest, ARaceOnDoubleBuffersOrAStorageFreedTooEarlyWouldChangeBits) {
  const int64_t steps = test_world().device().is_cuda() ? 200 : 8;
  const auto calm = train(GetParam(), steps, false);
  const auto disturbed = train(GetParam(), steps, true);
  ASSERT_EQ(calm.size(), disturbed.size());
  for (size_t i = 0; i < calm.size(); ++i) {
    EXPECT_TRUE(torch::equal(calm[i].second, disturbed[i].second)) << calm[i].first;
  }
}

std::vector<Way> some_ways() {
  std::vector<Way> some;
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
