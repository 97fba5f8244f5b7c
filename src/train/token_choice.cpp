// SPDX-License-Identifier: Apache-2.0
#include "train/token_choice.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace sherd {
namespace {

struct Candidate {
  int64_t token = 0;
  double weight = 0;  // the logit, then a probability, not yet divided by their sum
};

/// The most likely tokens, in this order; of equal ones the first.
std::vector<Candidate> most_likely(const at::Tensor& logits_V, int64_t top_k) {
  const auto here = logits_V.to(at::kCPU, at::kFloat).contiguous();
  const auto* logits = here.const_data_ptr<float>();
  std::vector<Candidate> all(static_cast<size_t>(here.numel()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = {static_cast<int64_t>(i), logits[i]};
  const auto count = top_k > 0 ? std::min<int64_t>(top_k, std::ssize(all)) : std::ssize(all);
  std::partial_sort(all.begin(), all.begin() + count, all.end(), [](const auto& a, const auto& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  });
  all.resize(static_cast<size_t>(count));
  return all;
}

}  // namespace

int64_t TokenChooser::choose(const at::Tensor& logits_V) {
  if (choice_.temperature == 0) return logits_V.argmax().item<int64_t>();
  auto candidates = most_likely(logits_V, choice_.top_k);
  const double most = candidates.front().weight;
  double sum = 0;
  for (auto& candidate : candidates) {
    candidate.weight = std::exp((candidate.weight - most) / choice_.temperature);
    sum += candidate.weight;
  }
  const double wanted = choice_.top_p * sum;
  double kept = 0;
  size_t count = 0;
  while (count < candidates.size() && (count == 0 || kept < wanted)) {
    kept += candidates[count++].weight;
  }
  const double drawn = static_cast<double>(random_() >> 11) * 0x1p-53 * kept;
  double passed = 0;
  for (size_t i = 0; i < count; ++i) {
    passed += candidates[i].weight;
    if (drawn < passed) return candidates[i].token;
  }
  return candidates[count - 1].token;  // what rounding has left over
}

}  // namespace sherd
