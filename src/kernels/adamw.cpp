// SPDX-License-Identifier: Apache-2.0
#include "kernels/adamw.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "kernels/adamw_math.h"
#include "kernels/cast_types.h"
#include "kernels/cpu_multiversion.h"
#include "kernels/meta_target.h"

namespace sherd {
namespace {

constexpr int64_t kBlock = 1024;  // elements that are worked on in the first-level cache

// The compiler makes vectors of it: no branches, no aliases.
SHERD_CPU_MULTIVERSION void update_block(
    const AdamWStep& step,
    float* __restrict weight,
    const float* __restrict gradient,
    float* __restrict first,
    float* __restrict second,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    adamw_element(step, weight[i], gradient[i], first[i], second[i]);
  }
}

/// Some elements of a buffer as fp32: the buffer itself, or a copy.
class Window {
 public:
  float* open(void* data, c10::ScalarType dtype, int64_t begin, int64_t count) {
    data_ = data;
    dtype_ = dtype;
    begin_ = begin;
    count_ = count;
    if (dtype == c10::kFloat) return static_cast<float*>(data) + begin;
    with_float_type(dtype, [&](auto type) {
      const auto* values = static_cast<const decltype(type)*>(data) + begin;
      for (int64_t i = 0; i < count; ++i)
        copy_[static_cast<size_t>(i)] = static_cast<float>(values[i]);
    });
    return copy_.data();
  }
  void close() const {
    if (dtype_ != c10::kFloat) store(copy_.data(), data_, dtype_, begin_, count_);
  }
  static void store(
      const float* values, void* data, c10::ScalarType dtype, int64_t begin, int64_t count) {
    with_float_type(dtype, [&](auto type) {
      using T = decltype(type);
      auto* target = static_cast<T*>(data) + begin;
      for (int64_t i = 0; i < count; ++i) target[i] = static_cast<T>(values[i]);
    });
  }

 private:
  std::array<float, kBlock> copy_;
  void* data_ = nullptr;
  c10::ScalarType dtype_{};
  int64_t begin_ = 0;
  int64_t count_ = 0;
};

void update_run(const AdamWPass::Run& run, const AdamWPass::Dtypes& dtypes, const double* fields) {
  const auto step = adamw_step(run.settings, fields);
  Window weights, gradients, firsts, seconds;
  for (int64_t begin = 0; begin < run.count; begin += kBlock) {
    const auto count = std::min(kBlock, run.count - begin);
    auto* weight = weights.open(run.weight, dtypes.weight, begin, count);
    const auto* gradient =
        gradients.open(const_cast<void*>(run.gradient), dtypes.gradient, begin, count);
    auto* first = firsts.open(run.first, dtypes.state, begin, count);
    auto* second = seconds.open(run.second, dtypes.state, begin, count);
    update_block(step, weight, gradient, first, second, count);
    weights.close();
    firsts.close();
    seconds.close();
    if (run.model) Window::store(weight, run.model, dtypes.model, begin, count);
  }
}

bool is_narrow_or_fp32(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kBFloat16 || dtype == c10::kHalf;
}

void check(const AdamWTensors& tensors) {
  const auto& [weight, gradient, first, second, model, settings] = tensors;
  TORCH_CHECK_VALUE(
      is_narrow_or_fp32(weight.scalar_type()) && is_narrow_or_fp32(gradient.scalar_type()),
      "[kernels] AdamW updates main weights of fp32, bf16 or fp16, not ", weight.scalar_type(),
      " with gradients of ", gradient.scalar_type(), ": use torch's optimizer for others");
  TORCH_CHECK_VALUE(
      first.scalar_type() == c10::kFloat || first.scalar_type() == c10::kBFloat16,
      "[kernels] AdamW keeps its moments in fp32 or bf16, not ", first.scalar_type());
  TORCH_INTERNAL_ASSERT(
      weight.numel() == gradient.numel() && weight.numel() == first.numel() &&
      weight.numel() == second.numel() && first.scalar_type() == second.scalar_type() &&
      (!model.defined() || model.numel() == weight.numel()));
}

}  // namespace

AdamWPass::AdamWPass(const std::vector<AdamWTensors>& tensors) : tensors_(tensors) {
  for (const auto& one : tensors_) {
    check(one);
    device_ = one.weight.device();
    const auto count = one.weight.numel();
    if (count == 0) continue;  // nothing of it is on this rank
    const Dtypes dtypes{
        one.weight.scalar_type(), one.gradient.scalar_type(), one.first.scalar_type(),
        one.model.defined() ? one.model.scalar_type() : one.weight.scalar_type()};
    auto batch = std::find_if(batches_.begin(), batches_.end(), [&](const Batch& other) {
      return other.dtypes == dtypes;
    });
    if (batch == batches_.end())
      batch = batches_.insert(batches_.end(), Batch{dtypes, {}, 0, {}, {}});
    batch->runs.push_back(
        {one.weight.mutable_data_ptr(), one.gradient.const_data_ptr(), one.first.mutable_data_ptr(),
         one.second.mutable_data_ptr(),
         one.model.defined() ? one.model.mutable_data_ptr() : nullptr, count, one.settings});
  }
  if (!needs_device_tables(device_)) return;
  for (auto& batch : batches_) {
    std::vector<int64_t> counts;
    for (const auto& run : batch.runs) counts.push_back(run.count);
    const auto chunks = chunks_of(counts);
    batch.chunks = std::ssize(chunks);
    batch.device_runs = on_device(batch.runs, device_);
    batch.device_chunks = on_device(chunks, device_);
  }
}

int64_t AdamWPass::bytes() const {
  int64_t sum = 0;
  for (const auto& batch : batches_) {
    for (const auto* table : {&batch.device_runs, &batch.device_chunks}) {
      if (table->defined()) sum += static_cast<int64_t>(table->nbytes());
    }
  }
  return sum;
}

void AdamWPass::run(const at::Tensor& fields) const {
  const auto* values = fields.const_data_ptr<double>();
  if (!device_.is_cuda() && values[control::skip] != 0) return;
  for (const auto& batch : batches_) {
    if (device_.is_cuda()) {
      adamw_on_cuda(batch, values, device_);
      continue;
    }
    for (const auto& run : batch.runs) update_run(run, batch.dtypes, values);
  }
}

void advance_control(const at::Tensor& fields, const at::Tensor& sums, const ControlRules& rules) {
  auto* values = fields.mutable_data_ptr<double>();
  const auto* squares = sums.const_data_ptr<double>();
  if (fields.is_cuda()) {
    return advance_control_on_cuda(values, squares, sums.numel(), rules, fields.device());
  }
  advance(values, squares, sums.numel(), rules);
}

}  // namespace sherd
