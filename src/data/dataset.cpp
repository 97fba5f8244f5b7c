// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

namespace sherd {
namespace {

constexpr int64_t kNoTarget = -100;

/// From pinned memory, where the host need not wait for what the device has to do before.
at::Tensor sent_to(c10::Device device, const at::Tensor& values) {
  if (!device.is_cuda()) return values.to(device);
  return (values.is_pinned() ? values : values.pin_memory()).to(device, /*non_blocking=*/true);
}

}  // namespace

Dataset::Dataset(
    std::unique_ptr<TokenFile> tokens, std::unique_ptr<ImageFile> images, const Options& options)
    : tokens_(std::move(tokens)), images_(std::move(images)), options_(options) {
  begin_ = position_of(options.begin);
  end_ = position_of(options.end);
  const bool part = options.begin > 0 || options.end < 1;
  TORCH_CHECK_VALUE(
      size() > (options.with_rest ? 1 : options.seq), "[train.data] ", tokens_->path(), " has ",
      size(), " tokens", part ? " in one of the parts that data.val_fraction makes" : "",
      "; a sequence of data.seq = ", options.seq, " needs ", options.seq + 1);
  table_.emplace(
      *tokens_,
      SampleTable::Options{options.seq, options.documents, begin_, end_, options.with_rest});
  TORCH_CHECK_VALUE(
      table_->samples() > 0, "[train.data] ", tokens_->path(),
      " has only documents of one token, which has no next one to predict");
  TORCH_CHECK_VALUE(
      !images_ || (options.documents == Documents::cross && !part && !options.with_rest),
      "[train.data] data.documents and data.val_fraction: data with images know neither; remove "
      "them");
}

/// Where a part of the file ends: documents that it knows are whole.
int64_t Dataset::position_of(double part) const {
  const int64_t size = tokens_->size();
  if (part <= 0 || part >= 1) return part <= 0 ? 0 : size;
  const auto position = static_cast<int64_t>(part * static_cast<double>(size));
  if (tokens_->documents() == 0) return position;
  for (int64_t span = 1 << 12;; span *= 2) {  // a few are read, not all behind
    const auto begins = tokens_->document_begins(position, std::min(size, position + span));
    if (!begins.empty()) return begins.front();
    if (position + span >= size) return position;  // the last document is cut
  }
}

bool Dataset::fills_samples() const {
  return !images_ && !tokens_->has_mask() && options_.documents == Documents::cross &&
         !options_.with_rest;
}

int64_t Dataset::targets_in(int64_t sample) const {
  if (images_) {
    const int64_t begin = begin_ + sample * options_.seq + 1;
    return options_.seq - (images_->before(begin + options_.seq) - images_->before(begin));
  }
  if (fills_samples()) return options_.seq;
  int64_t targets = 0;
  for (const auto& [begin, count] : table_->pieces(sample)) {
    const auto masked = tokens_->masked_runs(begin + 1, begin + 1 + count);
    targets += count;
    for (const auto& [from, to] : masked) targets -= to - from;
    if (options_.documents == Documents::cross) continue;
    for (const int64_t at : tokens_->document_begins(begin + 1, begin + 1 + count)) {
      targets -= std::none_of(masked.begin(), masked.end(), [&](const auto& run) {
        return run.first <= at && at < run.second;
      });
    }
  }
  return targets;
}

void Dataset::load_row(int64_t sample, int64_t* tokens, int64_t* targets) const {
  std::fill_n(tokens, options_.seq, 0);
  std::fill_n(targets, options_.seq, kNoTarget);
  std::vector<int64_t> both(static_cast<size_t>(options_.seq) + 1);
  for (const auto& [begin, count] : table_->pieces(sample)) {
    tokens_->read(begin, count + 1, options_.vocab, both.data());
    std::copy_n(both.data(), count, tokens);
    std::copy_n(both.data() + 1, count, targets);
    const auto exclude = [&, first = begin + 1](int64_t from, int64_t to) {
      std::fill(targets + (from - first), targets + (to - first), kNoTarget);
    };
    for (const auto& [from, to] : tokens_->masked_runs(begin + 1, begin + 1 + count))
      exclude(from, to);
    if (options_.documents != Documents::cross) {
      for (const int64_t at : tokens_->document_begins(begin + 1, begin + 1 + count)) {
        exclude(at, at + 1);
      }
    }
    tokens += count;
    targets += count;
  }
}

/// Where documents begin in a batch, padding as one more (Batch::documents).
at::Tensor Dataset::documents_of(const std::vector<int64_t>& samples) const {
  if (options_.documents == Documents::cross) return {};
  std::vector<int64_t> begins;
  for (size_t row = 0; row < samples.size(); ++row) {
    const auto first = static_cast<int64_t>(row) * options_.seq;
    int64_t at = first;
    for (const auto& piece : table_->pieces(samples[row])) {
      begins.push_back(at);
      at += piece.count;
    }
    if (at < first + options_.seq) begins.push_back(at);
  }
  begins.push_back(std::ssize(samples) * options_.seq);
  return at::tensor(begins, at::kLong);
}

Batch Dataset::load(const std::vector<int64_t>& samples, c10::Device device) const {
  const auto count = std::ssize(samples);
  const auto both = at::empty(
      {2, count, options_.seq}, at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
  auto* tokens = both.mutable_data_ptr<int64_t>();
  auto* targets = tokens + count * options_.seq;
  for (const int64_t sample : samples) {
    load_row(sample, tokens, targets);
    tokens += options_.seq;
    targets += options_.seq;
  }
  const auto there = sent_to(device, both);
  Batch batch{there[0], there[1], documents_of(samples)};
  if (images_) add_images(samples, device, batch);
  return batch;
}

Batch Dataset::without_targets(c10::Device device) const {
  const auto options = at::TensorOptions(at::kLong).device(device);
  return {at::zeros({1, options_.seq}, options), at::full({1, options_.seq}, kNoTarget, options)};
}

void Dataset::add_images(
    const std::vector<int64_t>& samples, c10::Device device, Batch& batch) const {
  std::vector<int64_t> images;
  std::map<int64_t, int64_t> known;  // image to its place among them
  std::vector<int64_t> places;
  std::vector<int64_t> patches;
  for (size_t row = 0; row < samples.size(); ++row) {
    const int64_t begin = samples[row] * options_.seq;
    int64_t number = images_->before(begin);
    for (int64_t i = 0; i < options_.seq; ++i) {
      if ((*tokens_)[begin + i] != images_->token()) continue;
      const auto [found, fresh] =
          known.try_emplace(number / images_->patches(), std::ssize(images));
      if (fresh) images.push_back(found->first);
      places.push_back(static_cast<int64_t>(row) * options_.seq + i);
      patches.push_back(found->second * images_->patches() + number % images_->patches());
      ++number;
    }
  }
  batch.targets = batch.targets.masked_fill(batch.targets == images_->token(), kNoTarget);
  if (images.empty()) return;
  batch.images = sent_to(device, images_->read(images));
  batch.image_places = sent_to(device, at::tensor(places, at::kLong));
  batch.image_patches = sent_to(device, at::tensor(patches, at::kLong));
}

}  // namespace sherd
