// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "data/token_file.h"

namespace sherd {

/// The images of a token file, where each stands as a run of one token, once per patch: the n-th
/// such token of the file is patch n % patches of image n / patches.
class ImageFile {
 public:
  struct Options {
    int64_t size = 0;     ///< pixels of a side
    int64_t patches = 0;  ///< of an image
    int64_t token = 0;
  };
  /// Reads through the tokens once. Throws unless there are as many images as they want.
  ImageFile(const std::string& path, const TokenFile& tokens, const Options& options);

  int64_t token() const { return options_.token; }
  int64_t patches() const { return options_.patches; }
  /// How many of the file's image tokens stand before a position.
  int64_t before(int64_t position) const;
  /// Some images as [images, 3, size, size], fp32 of -1 … 1.
  at::Tensor read(const std::vector<int64_t>& images) const;

 private:
  MappedFile file_;
  Options options_;
  std::vector<int64_t> places_;  // of the image tokens
};

}  // namespace sherd
