// SPDX-License-Identifier: Apache-2.0
#include "data/image_file.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace sherd {

ImageFile::ImageFile(const std::string& path, const TokenFile& tokens, const Options& options)
    : file_(path), options_(options) {
  const int64_t bytes = 3 * options.size * options.size;
  const auto size = static_cast<int64_t>(file_.size());
  TORCH_CHECK_VALUE(
      size > 0 && size % bytes == 0, "[train.data] ", path, " has ", size,
      " bytes, which is not a multiple of an image's ", bytes,
      " bytes (3 · model.image_size², which is ", options.size, "²)");
  for (int64_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == options.token) places_.push_back(i);
  }
  const int64_t images = size / bytes;
  TORCH_CHECK_VALUE(
      std::ssize(places_) == images * options.patches, "[train.data] ", path, " has ", images,
      " images of ", options.patches, " patches, so the token model.image_token = ", options.token,
      " must occur ", images * options.patches, " times in ", tokens.path(), ", but it occurs ",
      places_.size(), " times there");
}

int64_t ImageFile::before(int64_t position) const {
  return std::lower_bound(places_.begin(), places_.end(), position) - places_.begin();
}

at::Tensor ImageFile::read(const std::vector<int64_t>& images) const {
  const int64_t bytes = 3 * options_.size * options_.size;
  auto pixels = at::empty({std::ssize(images), options_.size, options_.size, 3}, at::kByte);
  auto* into = pixels.mutable_data_ptr<uint8_t>();
  for (const int64_t image : images) {
    std::memcpy(into, file_.data() + image * bytes, static_cast<size_t>(bytes));
    into += bytes;
  }
  return pixels.permute({0, 3, 1, 2}).to(at::kFloat).div_(127.5).sub_(1).contiguous();
}

}  // namespace sherd
