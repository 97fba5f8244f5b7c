// SPDX-License-Identifier: Apache-2.0
#include "sherd/models/vlm.h"

#include <c10/util/Exception.h>

#include "models/blocks/decoder.h"
#include "models/llama/llama_layer.h"
#include "models/vlm/vision.h"

namespace sherd {
namespace {

class Vlm final : public Decoder {
 public:
  explicit Vlm(const VlmOptions& options)
      : Decoder("vlm", options.base, llama_layers(options.base)),
        patches_(options.vision.patches()) {
    vision_ = register_module("vision", VisionTower(options.vision, options.base));
  }

  std::vector<std::shared_ptr<torch::nn::Module>> units() const override {
    auto result = vision_->units();
    for (const auto& unit : Decoder::units()) result.push_back(unit);
    return result;
  }

  std::vector<UnitOperations> operations(int64_t seq) const override {
    auto result = Decoder::operations(seq);
    const auto seen = static_cast<double>(seq / patches_ * patches_) / static_cast<double>(seq);
    for (const auto& unit : vision_->operations()) {
      result.push_back(
          {"vision." + unit.unit, seen * unit.forward, seen * unit.selective, unit.layer});
    }
    return result;
  }

 protected:
  at::Tensor embedded(const Batch& batch) override {
    if (!batch.images.defined()) return Decoder::embedded(batch);
    const auto seen_PD = vision_(batch.images).flatten(0, 1).index_select(0, batch.image_patches);
    const auto x_BSD = Decoder::embedded(batch);
    return x_BSD.flatten(0, 1)
        .index_copy(0, batch.image_places, seen_PD.to(x_BSD.scalar_type()))
        .view_as(x_BSD);
  }

 private:
  int64_t patches_;  // of an image; each takes the place of a token
  VisionTower vision_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> make_vlm(const VlmOptions& options) {
  const SequenceRanks ranks(options.base.mesh);
  TORCH_CHECK_VALUE(
      ranks.size() == 1, "[models.vlm] ", ranks.cp(), " ranks along 'cp' and ", ranks.tp(),
      " along 'tp': ranks of a vision-language model cannot share sequences, whose images are "
      "whole; use one rank along both");
  return std::make_shared<Vlm>(options);
}

}  // namespace sherd
