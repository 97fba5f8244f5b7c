// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "sherd/export.h"
#include "sherd/models/llama.h"

namespace sherd {

/// A transformer over the patches of an image.
struct VisionOptions {
  int64_t image_size = 32;  ///< pixels of a side
  int64_t patch = 8;        ///< pixels of a patch's side; divides image_size
  int64_t dim = 128;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t ffn = 384;

  /// Patches of an image, each of which stands for one token.
  int64_t patches() const { return image_size / patch * (image_size / patch); }
};

struct VlmOptions {
  LlamaOptions base{};
  VisionOptions vision{};
};

/// A Llama that sees: where an image stands in the text, its tokens are the patches that a vision
/// tower has looked at. Units: those of the Llama, and before them the tower's patches, each of its
/// layers, and its bridge to the Llama. A batch without an image does not call them.
SHERD_API std::shared_ptr<LanguageModel> make_vlm(const VlmOptions& options);

}  // namespace sherd
