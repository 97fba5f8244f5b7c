// SPDX-License-Identifier: Apache-2.0
#include "shard/group/gradient_inbox.h"

#include <algorithm>

namespace sherd {
namespace {

/// Gradients are copied together up to this many bytes, so that small ones don't cost a launch
/// each.
constexpr int64_t kCopyTogether = int64_t{4} << 20;

}  // namespace

void GradientInbox::set_buffer(const at::Tensor& full) {
  targets_.clear();
  if (!full.defined()) return;
  for (size_t member = 0; member < layout_.size(); ++member) {
    targets_.push_back(layout_.view(full, member));
  }
}

void GradientInbox::mark_all_unwritten() {
  std::fill(written_.begin(), written_.end(), false);
}

void GradientInbox::begin_step() {
  std::fill(received_.begin(), received_.end(), false);
}

void GradientInbox::receive(size_t member, const at::Tensor& gradient) {
  const auto& target = targets_[member];
  auto values = gradient.is_sparse() ? gradient.to_dense() : gradient;
  if (!is_float16_or_wider(values.scalar_type())) values = values.to(layout_.traits().compute);
  values = values.contiguous();
  const bool add = written_[member];
  // A second gradient of one parameter must come after the first.
  if (add || (!pending_.empty() && pending_dtype_ != values.scalar_type())) flush();
  pending_dtype_ = values.scalar_type();
  pending_.push_back({target.mutable_data_ptr(), values.const_data_ptr(), target.numel(), add});
  pending_bytes_ += static_cast<int64_t>(values.nbytes());
  pending_sources_.push_back(std::move(values));
  written_[member] = true;
  received_[member] = true;
  if (!layout_.device().is_cuda() || pending_bytes_ >= kCopyTogether) flush();
}

GradientInbox::Target GradientInbox::take_target(size_t member) {
  const bool add = written_[member];
  if (add) flush();
  written_[member] = true;
  received_[member] = true;
  return {targets_[member], !add};
}

void GradientInbox::flush() {
  if (pending_.empty()) return;
  cast_copy(pending_, {targets_.front().scalar_type(), pending_dtype_, 1}, layout_.device());
  drop_pending();
}

void GradientInbox::zero_unwritten() {
  flush();
  for (size_t member = 0; member < written_.size(); ++member) {
    if (!written_[member]) targets_[member].zero_();
  }
}

void GradientInbox::drop_pending() {
  pending_.clear();
  pending_sources_.clear();
  pending_bytes_ = 0;
}

}  // namespace sherd
