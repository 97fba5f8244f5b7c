// SPDX-License-Identifier: Apache-2.0
#include "forecast/graphed_steps.h"

#include <ATen/ops/zeros.h>

namespace sherd {

at::Tensor GraphedSteps::run(const std::vector<Batch>& batches, const Step& step) {
  if (made_ < kBefore) {
    ++made_;
    at::Tensor sum;
    graph_.on_stream([&] {
      sum = at::zeros({1}, batches.front().tokens.options().dtype(at::kDouble));
      step(batches, sum);
    });
    return sum;
  }
  if (!graph_.is_captured()) {
    for (const auto& batch : batches) {
      batches_.push_back({batch.tokens.clone(), batch.targets.clone()});
    }
    sum_ = at::zeros({1}, batches.front().tokens.options().dtype(at::kDouble));
    graph_.capture([&] {
      sum_.zero_();
      step(batches_, sum_);
    });
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    batches_[i].tokens.copy_(batches[i].tokens);
    batches_[i].targets.copy_(batches[i].targets);
  }
  graph_.replay();
  return sum_;
}

}  // namespace sherd
