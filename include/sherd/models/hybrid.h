// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sherd/export.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"

namespace sherd {

/// Mamba-2: a state per head that fades as the tokens decide.
struct MambaOptions {
  int64_t state = 64;     ///< numbers of the state per dim of a head
  int64_t head_dim = 64;  ///< divides expand · dim
  int64_t expand = 2;     ///< inner width / dim
  int64_t groups = 1;     ///< heads that share their keys to the state; divides the heads
  int64_t width = 4;      ///< tokens that the convolution before it sees
  int64_t chunk = 128;    ///< tokens that are computed as one matrix; the result is the same
};

struct HybridOptions {
  LlamaOptions base{};
  ExpertOptions experts{};
  MambaOptions mamba{};
  /// A letter per layer, from the first on and again where it is short: M Mamba-2, * attention,
  /// - feed-forward, E experts.
  std::string pattern = "M-*E";
};

/// Layers of four kinds, each with its norm and its residual path, in the order of a pattern. Units
/// as of a Llama: they are of unequal size.
SHERD_API std::shared_ptr<LanguageModel> make_hybrid(const HybridOptions& options);

}  // namespace sherd
