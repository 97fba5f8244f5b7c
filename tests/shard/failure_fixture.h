// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>

#include "shard/parity.h"

// A model that fails on request, with two reference models that do not.
namespace sherd::testing {

using Change = std::function<at::Tensor(const at::Tensor&)>;

struct FaultyBlockImpl : PerceptronBlockImpl {
  explicit FaultyBlockImpl(bool recompute);
  at::Tensor forward(const at::Tensor& x);
  Change before, after;  ///< what happens to its input, and to its output
};
SHERD_MODULE(FaultyBlock);

struct FaultyModelImpl : torch::nn::Module {
  enum class Recompute { nowhere, inside_blocks, around_blocks };
  explicit FaultyModelImpl(Recompute where = Recompute::nowhere, int64_t blocks = 3);
  /// The mean squared error.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& target);
  Recompute where;
  bool swallow = false;  ///< goes on without a block that throws std::logic_error
  torch::nn::Linear in{nullptr};
  std::vector<FaultyBlock> blocks;
  torch::nn::Linear out{nullptr};
};
SHERD_MODULE(FaultyModel);

/// The identity in the forward; runs `action` in the backward.
struct InBackward : torch::autograd::Function<InBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x);
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients);
  inline static std::function<void()> action;
};
at::Tensor in_backward(const at::Tensor& x);

/// A sharded model; its twin, sharded alike, that nothing happens to; and the same model unsharded,
/// with the data of all ranks.
class FailureFixture {
 public:
  struct Options {
    ShardingCase way{"optim_grads_params", Placement(Strategy::optim_grads_params)};
    int64_t micro_batches = 1;
    FaultyModelImpl::Recompute recompute = FaultyModelImpl::Recompute::nowhere;
    Optimizer optimizer = Optimizer::sgd;
    Loss loss = Loss::mean;
  };
  explicit FailureFixture(const Options& options);
  FailureFixture() : FailureFixture(Options()) {}

  /// The loss of a micro-batch of the step under way, on this rank's data.
  at::Tensor forward(FaultyModel& which, int64_t micro_batch = 0);
  at::Tensor forward() { return forward(model); }
  /// One micro-batch: of all three, of the sharded model alone, or of the other two.
  void pass(int64_t micro_batch);
  void pass_model(int64_t micro_batch) { forward(model, micro_batch).backward(); }
  void pass_others(int64_t micro_batch);
  void update();
  /// Steps of all three, then compares.
  void train(int64_t steps = 1);
  /// The sharded model has the weights of its twin, bit by bit, and those of the unsharded one.
  void expect_alike();
  /// Nothing of the model is gathered, and no gradient is expected.
  void expect_resting();

  const ShardingCase& way() const { return options_.way; }
  bool gathers() const;

 private:
  Options options_;
  int64_t step_ = 0;

 public:
  FaultyModel model, twin, reference;
  std::unique_ptr<torch::optim::Optimizer> optimizer, twin_optimizer, reference_optimizer;
};

/// Copies of this rank's main weights.
std::vector<at::Tensor> main_weights(const torch::nn::Module& model);
void expect_same_bits(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other);

/// The words of what is thrown.
std::string error_of(const std::function<void()>& run);
/// Asserts that an error is thrown that says all of this.
void expect_error(const std::vector<std::string>& parts, const std::function<void()>& run);

}  // namespace sherd::testing
