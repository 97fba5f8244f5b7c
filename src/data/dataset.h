// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "data/image_file.h"
#include "data/sample_table.h"
#include "data/token_file.h"
#include "sherd/models/language_model.h"

namespace sherd {

/// Samples of a token file: sequences of `seq` tokens and the ones after them as targets. What
/// stands for an image, what the file masks and what begins another document than the token before
/// it is no target (the last one unless documents may be crossed). What a sample does not fill is
/// padding without targets.
class Dataset {
 public:
  struct Options {
    int64_t seq = 0;
    int64_t vocab = 0;
    Documents documents = Documents::cross;
    double begin = 0;        ///< the part of the file that is used, from 0 to 1; documents that
    double end = 1;          ///< the file knows are not cut for it
    bool with_rest = false;  ///< the last sample may have fewer than seq tokens
  };
  Dataset(
      std::unique_ptr<TokenFile> tokens, std::unique_ptr<ImageFile> images, const Options& options);

  const TokenFile& tokens() const { return *tokens_; }
  /// How many tokens of the file it uses.
  int64_t size() const { return end_ - begin_; }
  int64_t samples() const { return table_->samples(); }
  bool has_images() const { return images_ != nullptr; }
  /// Whether all samples have `seq` targets.
  bool fills_samples() const;
  /// How many targets of a sample count.
  int64_t targets_in(int64_t sample) const;
  /// On a GPU the host does not wait for the copies; the current stream does.
  Batch load(const std::vector<int64_t>& samples, c10::Device device) const;
  /// A sequence without targets, for a rank that has no samples and exchanges activations.
  Batch without_targets(c10::Device device) const;

 private:
  int64_t position_of(double part) const;
  void load_row(int64_t sample, int64_t* tokens, int64_t* targets) const;
  at::Tensor documents_of(const std::vector<int64_t>& samples) const;
  void add_images(const std::vector<int64_t>& samples, c10::Device device, Batch& batch) const;

  std::unique_ptr<TokenFile> tokens_;
  std::unique_ptr<ImageFile> images_;  // or nothing
  Options options_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  std::optional<SampleTable> table_;
};

}  // namespace sherd
