// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <map>

namespace sherd {
namespace {

/// From pinned memory, where the host need not wait for what the device has to do before.
at::Tensor sent_to(c10::Device device, const at::Tensor& values) {
  if (!device.is_cuda()) return values.to(device);
  return (values.is_pinned() ? values : values.pin_memory()).to(device, /*non_blocking=*/true);
}

}  // namespace

Dataset::Dataset(
    std::unique_ptr<TokenFile> tokens,
    std::unique_ptr<ImageFile> images,
    int64_t seq,
    int64_t vocab)
    : tokens_(std::move(tokens)), images_(std::move(images)), seq_(seq), vocab_(vocab) {
  TORCH_CHECK_VALUE(
      tokens_->size() > seq, "[train.data] ", tokens_->path(), " has ", tokens_->size(),
      " tokens; a sequence of data.seq = ", seq, " needs ", seq + 1);
}

int64_t Dataset::samples() const {
  return (tokens_->size() - 1) / seq_;
}

int64_t Dataset::targets_in(int64_t sample) const {
  if (!images_) return seq_;
  const int64_t begin = sample * seq_ + 1;
  return seq_ - (images_->before(begin + seq_) - images_->before(begin));
}

Batch Dataset::load(const std::vector<int64_t>& samples, c10::Device device) const {
  auto rows = at::empty(
      {std::ssize(samples), seq_ + 1},
      at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
  auto* into = rows.mutable_data_ptr<int64_t>();
  for (const int64_t sample : samples) {
    tokens_->read(sample * seq_, seq_ + 1, vocab_, into);
    into += seq_ + 1;
  }
  rows = sent_to(device, rows);
  Batch batch{rows.narrow(1, 0, seq_).contiguous(), rows.narrow(1, 1, seq_).contiguous()};
  if (images_) add_images(samples, device, batch);
  return batch;
}

Batch Dataset::without_targets(c10::Device device) const {
  const auto options = at::TensorOptions(at::kLong).device(device);
  return {at::zeros({1, seq_}, options), at::full({1, seq_}, -100, options)};
}

void Dataset::add_images(
    const std::vector<int64_t>& samples, c10::Device device, Batch& batch) const {
  std::vector<int64_t> images;
  std::map<int64_t, int64_t> known;  // image to its place among them
  std::vector<int64_t> places;
  std::vector<int64_t> patches;
  for (size_t row = 0; row < samples.size(); ++row) {
    const int64_t begin = samples[row] * seq_;
    int64_t number = images_->before(begin);
    for (int64_t i = 0; i < seq_; ++i) {
      if ((*tokens_)[begin + i] != images_->token()) continue;
      const auto [found, fresh] =
          known.try_emplace(number / images_->patches(), std::ssize(images));
      if (fresh) images.push_back(found->first);
      places.push_back(static_cast<int64_t>(row) * seq_ + i);
      patches.push_back(found->second * images_->patches() + number % images_->patches());
      ++number;
    }
  }
  batch.targets = batch.targets.masked_fill(batch.targets == images_->token(), -100);
  if (images.empty()) return;
  batch.images = sent_to(device, images_->read(images));
  batch.image_places = sent_to(device, at::tensor(places, at::kLong));
  batch.image_patches = sent_to(device, at::tensor(patches, at::kLong));
}

}  // namespace sherd
