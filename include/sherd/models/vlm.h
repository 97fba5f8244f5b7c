// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "sherd/export.h"
#include "sherd/models/llama.h"

namespace sherd {

/// Sizes of a vision tower, a transformer over the patches of an image.
struct VisionOptions {
  int64_t image_size = 32;  ///< height and width of an image in pixels
  int64_t patch = 8;        ///< height and width of a patch in pixels; divides image_size
  int64_t dim = 128;        ///< width of the tower
  int64_t layers = 2;       ///< number of layers
  int64_t heads = 4;        ///< number of attention heads; divides `dim`
  int64_t ffn = 384;        ///< width inside the feed-forward

  /// Returns the number of patches of an image; each takes the place of one token.
  int64_t patches() const { return image_size / patch * (image_size / patch); }
};

/// Options of make_vlm.
struct VlmOptions {
  LlamaOptions base{};     ///< sizes of the language model
  VisionOptions vision{};  ///< sizes of the vision tower
};

/// Makes a vision-language model: a Llama in which the outputs of a vision tower replace the
/// embeddings of image tokens. Its units are the tower's patch embedding, each of its layers and
/// its projection to the Llama, then those of the Llama. A batch without an image does not call the
/// tower.
SHERD_API std::shared_ptr<LanguageModel> make_vlm(const VlmOptions& options);

}  // namespace sherd
