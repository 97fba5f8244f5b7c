// SPDX-License-Identifier: Apache-2.0
// What a step with weights in fp8 sends, as an emulated world sees it.
#include "comm/emulated/recorded_calls.h"
#include "nn/fp8_model.h"
#include "shard/emulated_world.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

using Calls = std::vector<RecordedCall>;

struct SentStep {
  Calls calls;
  StepTraffic planned;
  int64_t encoded_elements = 0;  ///< of all groups in fp8, padding included
  int64_t weights = 0;           ///< parameters in fp8
};

/// The second step: its weights have changed, and its order is known.
SentStep second_step(const ShardingCase& way, const std::string& recipe) {
  auto model = fp8_stack();
  UnitOptions options{.mesh = mesh_for(way), .placement = way.placement};
  options.precision = Precision::recipe(recipe);
  shard_fp8(model, options);
  auto optimizer = make_optimizer(Optimizer::sgd, parameters(model));
  const auto step = [&] {
    model(fp8_input(0, 0)).backward();
    sherd::step(model, *optimizer);
  };
  step();
  recorded_calls(test_world().communicator(), /*forget=*/true);
  step();
  SentStep sent{recorded_calls(test_world().communicator(), true), program(model).traffic()};
  std::erase_if(
      sent.calls, [](const RecordedCall& call) { return call.communicator == "control"; });
  for (const auto& unit : program(model).units()) {
    for (const auto& group : unit.groups) {
      if (group.bytes.model == 1) sent.encoded_elements += group.elements;
    }
  }
  for (const auto& [name, main] : named_parameters(model)) {
    sent.weights += name.find("block") == 0 && name.find("norm") == std::string::npos;
  }
  return sent;
}

int64_t bytes_of(const Calls& calls, Collective collective, c10::ScalarType dtype) {
  int64_t bytes = 0;
  for (const auto& call : calls) {
    if (call.collective == collective && call.dtype == dtype) bytes += call.bytes;
  }
  return bytes;
}

class Fp8Traffic : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { use_emulated_world(GetParam()); }
};

TEST_P(Fp8Traffic, EveryStrategySendsTheCallsAndBytesOfItsProgram) {
  for (const auto& way : all_ways()) {
    for (const char* recipe : {"fp8", "fp8_wgrad16", "fp8_block", "mxfp8"}) {
      SCOPED_TRACE(way.name + ", " + recipe);
      const auto sent = second_step(way, recipe);
      for (const auto& [collective, kind] :
           {std::pair{Collective::all_gather, &StepTraffic::all_gather},
            {Collective::reduce_scatter, &StepTraffic::reduce_scatter},
            {Collective::all_reduce, &StepTraffic::all_reduce}}) {
        int64_t calls = 0, bytes = 0;
        for (const auto& call : sent.calls) {
          if (call.collective != collective) continue;
          ++calls;
          bytes += call.bytes;
        }
        EXPECT_EQ(calls, (sent.planned.*kind).calls) << static_cast<int>(collective);
        EXPECT_EQ(bytes, (sent.planned.*kind).bytes) << static_cast<int>(collective);
      }
    }
  }
}

TEST_P(Fp8Traffic, AnElementIsOneByteAndScalesAreThoseOfTheRecipe) {
  constexpr int64_t kBlock = 128 * 128, kMx = 32;
  for (const std::string recipe : {"fp8", "fp8_wgrad16", "fp8_block", "mxfp8"}) {
    SCOPED_TRACE(recipe);
    const auto sent = second_step(way_called("optim_grads_params"), recipe);
    const int64_t elements = sent.encoded_elements;
    const bool mx = recipe == "mxfp8", blocks = recipe == "fp8_block";
    EXPECT_GE(elements, 2 * (3 * 128 * 256 + 128 * 512));
    const int64_t once = elements + (blocks ? elements / kBlock * 4 : mx ? elements / kMx : 0);
    // Once in the forward and once in the backward, which with mxfp8 needs both encodings.
    EXPECT_EQ(
        bytes_of(sent.calls, Collective::all_gather, at::kFloat8_e4m3fn), once * (mx ? 3 : 2));
    EXPECT_EQ(
        bytes_of(sent.calls, Collective::all_reduce, at::kInt),
        blocks || mx ? 0 : 4 * sent.weights);
    EXPECT_EQ(sent.weights, 8);
    // Norms and the head are gathered in bf16, and gradients are reduced in fp32.
    EXPECT_GT(bytes_of(sent.calls, Collective::all_gather, at::kBFloat16), 0);
    EXPECT_GE(bytes_of(sent.calls, Collective::reduce_scatter, at::kFloat), 4 * elements);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Fp8Traffic, ::testing::Values(2, 8));

}  // namespace
}  // namespace sherd::testing
