// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/image_file.h"
#include "data/token_file.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// Samples of a token file: sample i is the seq + 1 tokens from i · seq on, its targets shifted by
/// one. What stands for an image is no target.
class Dataset {
 public:
  Dataset(
      std::unique_ptr<TokenFile> tokens,
      std::unique_ptr<ImageFile> images,
      int64_t seq,
      int64_t vocab);

  const TokenFile& tokens() const { return *tokens_; }
  int64_t samples() const;
  bool has_images() const { return images_ != nullptr; }
  /// How many targets of a sample count.
  int64_t targets_in(int64_t sample) const;
  /// On a GPU the host does not wait for the copies; the current stream does.
  Batch load(const std::vector<int64_t>& samples, c10::Device device) const;
  /// A sequence without targets, for a rank that has no samples and exchanges activations.
  Batch without_targets(c10::Device device) const;

 private:
  void add_images(const std::vector<int64_t>& samples, c10::Device device, Batch& batch) const;

  std::unique_ptr<TokenFile> tokens_;
  std::unique_ptr<ImageFile> images_;  // or nothing
  int64_t seq_;
  int64_t vocab_;
};

}  // namespace sherd
