// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "sherd/export.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"

namespace sherd {

/// Sizes of a Mamba-2 (selective state space) layer.
struct MambaOptions {
  int64_t state = 64;     ///< size of the state for each dim of a head
  int64_t head_dim = 64;  ///< width of a head; divides expand · dim
  int64_t expand = 2;     ///< inner width divided by dim
  int64_t groups = 1;     ///< groups of heads that share B and C; divides the number of heads
  int64_t width = 4;      ///< kernel size of the convolution, in tokens
  int64_t chunk = 128;    ///< tokens computed as one matrix; does not change the result
};

/// Options of make_hybrid.
struct HybridOptions {
  LlamaOptions base{};      ///< sizes of all but experts and Mamba-2 layers
  ExpertOptions experts{};  ///< sizes of expert layers
  MambaOptions mamba{};     ///< sizes of Mamba-2 layers
  /// The kinds of the layers, a letter each: M Mamba-2, * attention, - feed-forward, E experts. A
  /// short pattern is repeated.
  std::string pattern = "M-*E";
  /// The part of each attention head that has rotary embeddings: its first dims in checkpoints.
  double rope_fraction = 1;

  /// Returns the kind of a layer.
  char letter(int64_t layer) const { return pattern[static_cast<size_t>(layer) % pattern.size()]; }
  /// Returns the number of a head's dims that have rotary embeddings.
  int64_t rotated_dims() const {
    return static_cast<int64_t>(static_cast<double>(base.head_dim) * rope_fraction);
  }
};

/// Makes a model with layers of four kinds, each with its norm and residual connection, in the
/// order of a pattern. Its units are those of a Llama, but differ in size. If all layers are pairs
/// of a Mamba-2 or attention and a feed-forward, its checkpoints are Hugging Face folders of a
/// Bamba; others have no config.json and Sherd's names. Throws if the pattern is empty or has other
/// letters, and unless an even number of a head's dims has rotary embeddings.
SHERD_API std::shared_ptr<LanguageModel> make_hybrid(const HybridOptions& options);

}  // namespace sherd
