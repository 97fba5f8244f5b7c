// SPDX-License-Identifier: Apache-2.0
#include "kernels/measure.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "kernels/cast_types.h"
#include "kernels/measure_math.h"
#include "kernels/meta_target.h"

namespace sherd {
namespace {

/// Eight sums side by side: the compiler keeps them in one register.
template <class T>
double sum_of_squares(const T* values, int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i)
    lanes[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

Measurement::Measurement(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
  std::vector<int64_t> counts;
  for (const auto& tensor : tensors) {
    TORCH_CHECK_VALUE(
        is_float16_or_wider(tensor.scalar_type()) && tensor.is_contiguous(),
        "[kernels] a tensor of dtype ", tensor.scalar_type(),
        " can't be measured: use flat floating point of 16 bits or more");
    device_ = tensor.device();
    counts.push_back(tensor.numel());
    runs_.push_back(
        {tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr, tensor.numel(),
         static_cast<int32_t>(tensor.scalar_type())});
  }
  if (!needs_device_tables(device_)) return;
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < runs_.size(); ++i) {
    auto mine = chunks_of({&counts[i], 1});
    if (mine.empty()) mine.emplace_back();  // a sum of nothing is a sum, too
    runs_[i].first_chunk = static_cast<int32_t>(chunks.size());
    runs_[i].chunks = static_cast<int32_t>(mine.size());
    for (auto& chunk : mine) {
      chunk.run = static_cast<int32_t>(i);
      chunks.push_back(chunk);
    }
  }
  chunk_count_ = std::ssize(chunks);
  device_runs_ = on_device(runs_, device_);
  device_chunks_ = on_device(chunks, device_);
  partial_ = at::empty({chunk_count_}, at::TensorOptions().dtype(at::kDouble).device(device_));
  arrived_ = at::zeros({std::ssize(runs_)}, at::TensorOptions().dtype(at::kInt).device(device_));
}

int64_t Measurement::bytes() const {
  int64_t sum = 0;
  for (const auto* table : {&device_runs_, &device_chunks_, &partial_, &arrived_}) {
    if (table->defined()) sum += static_cast<int64_t>(table->nbytes());
  }
  return sum;
}

void Measurement::run(const at::Tensor& sums) const {
  TORCH_INTERNAL_ASSERT(sums.numel() == std::ssize(runs_) && sums.scalar_type() == at::kDouble);
  run(sums.mutable_data_ptr<double>(), nullptr, {});
}

void Measurement::run(double* sums, Watched* watched, const Look& look) const {
  if (device_.is_meta()) return;
  if (device_.is_cuda()) return measure_on_cuda(*this, sums, watched, look);
  for (size_t i = 0; i < runs_.size(); ++i) {
    with_float_type(tensors_[i].scalar_type(), [&](auto type) {
      sums[i] = sum_of_squares(static_cast<const decltype(type)*>(runs_[i].values), runs_[i].count);
    });
    if (watched) judge(watched[i], sums[i], look);
  }
}

}  // namespace sherd
