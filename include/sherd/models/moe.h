// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "sherd/export.h"
#include "sherd/models/llama.h"

namespace sherd {

/// Feed-forwards of which each token takes the few that a router chooses for it. No token is ever
/// dropped, however many want the same expert.
struct ExpertOptions {
  int64_t count = 8;
  int64_t top_k = 2;       ///< experts of a token
  int64_t ffn = 704;       ///< width inside an expert
  int64_t shared_ffn = 0;  ///< width of the expert that every token takes too; 0: there is none
  /// Weight of the loss that wants all experts of a layer equally busy within each sequence: 1 per
  /// layer and token where they are. Being of one sequence, it does not depend on the ranks.
  double balance = 0.01;
};

struct MoeOptions {
  LlamaOptions base{};  ///< `ffn` is not used
  ExpertOptions experts{};
};

/// A Llama whose feed-forwards are experts; the same units.
SHERD_API std::shared_ptr<LanguageModel> make_moe(const MoeOptions& options);

}  // namespace sherd
