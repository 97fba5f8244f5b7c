// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shard/parity.h"

namespace sherd::testing {

/// A perceptron that computes again what it is told to: a root and its blocks, one group each.
struct StackImpl : PerceptronImpl {
  enum class Recompute { nowhere, inside_blocks, around_first, around_all };

  explicit StackImpl(Recompute where = Recompute::nowhere, int64_t count = 2, int64_t dim = 10)
      : PerceptronImpl({.recompute = where == Recompute::inside_blocks}, count, dim),
        where_(where) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& target) {
    const auto all = [this](at::Tensor hidden) {
      for (auto& block : blocks) hidden = block(hidden);
      return hidden;
    };
    const auto first_again = [this](at::Tensor hidden) {
      hidden = recompute([this](const at::Tensor& y) { return blocks.front()(y); }, hidden);
      for (size_t i = 1; i < blocks.size(); ++i) hidden = blocks[i](hidden);
      return hidden;
    };
    auto hidden = torch::tanh(in(x));
    switch (where_) {
      case Recompute::around_first: hidden = first_again(hidden); break;
      case Recompute::around_all: hidden = recompute(all, hidden); break;
      default: hidden = all(hidden);
    }
    return torch::mse_loss(out(hidden), target);
  }

 private:
  Recompute where_;
};
SHERD_MODULE(Stack);

inline const std::vector<std::pair<std::string, StackImpl::Recompute>>& all_recomputes() {
  using enum StackImpl::Recompute;
  static const std::vector<std::pair<std::string, StackImpl::Recompute>> all{
      {"no recompute", nowhere},
      {"recompute inside blocks", inside_blocks},
      {"recompute around the first block", around_first},
      {"recompute around all blocks", around_all}};
  return all;
}

/// An optimizer without states, so that all memory that an update leaves behind is Sherd's.
inline torch::optim::SGD plain_sgd(const torch::nn::Module& model) {
  return torch::optim::SGD(parameters(model), torch::optim::SGDOptions(0.01));
}

template <class Holder>
void shard_stack(Holder& model, const UnitOptions& options, const RootOptions& root = {}) {
  for (auto& block : model->blocks) fully_shard(block, options);
  fully_shard(model, options, root);
}

}  // namespace sherd::testing
