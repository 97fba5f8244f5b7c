// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

namespace sherd {

/// How the next token of a text is chosen.
struct TokenChoice {
  double temperature = 0;  ///< logits are divided by it; 0: always the most likely token
  int64_t top_k = 0;       ///< only the k most likely tokens; 0: all
  double top_p = 1;        ///< of those, the fewest whose probabilities add up to this
  uint64_t seed = 1;
};

/// Chooses one token after another: the same for the same logits and seed.
class TokenChooser {
 public:
  explicit TokenChooser(const TokenChoice& choice) : choice_(choice), random_(choice.seed) {}
  /// Chooses by the logits of one position, [vocab]. Waits for the device.
  int64_t choose(const at::Tensor& logits_V);

 private:
  TokenChoice choice_;
  std::mt19937_64 random_;
};

}  // namespace sherd
