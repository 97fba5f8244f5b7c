// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/rope.h"

#include "kernels/cast_types.h"

namespace sherd {
namespace {

template <class T>
void turn_head(
    const T* source, T* target, const float* cosine, const float* sine, int64_t half, bool back) {
  using Math = CastMath<T, T>;
  for (int64_t i = 0; i < half; ++i) {
    const auto first = static_cast<Math>(source[i]);
    const auto second = static_cast<Math>(source[i + half]);
    const Math c = cosine[i];
    const Math s = back ? -sine[i] : sine[i];
    target[i] = static_cast<T>(first * c - second * s);
    target[i + half] = static_cast<T>(second * c + first * s);
  }
}

template <class T>
void turn(const RopeWork& work) {
  const auto& source = work.source;
  const auto& target = work.target;
  const int64_t half = source.size(3) / 2;
  for (int64_t batch = 0; batch < source.size(0); ++batch) {
    for (int64_t position = 0; position < source.size(1); ++position) {
      const auto* cosine = work.cosine.const_data_ptr<float>() + position * half;
      const auto* sine = work.sine.const_data_ptr<float>() + position * half;
      for (int64_t head = 0; head < source.size(2); ++head) {
        const auto place = [&](const at::Tensor& x) {
          return batch * x.stride(0) + position * x.stride(1) + head * x.stride(2);
        };
        turn_head(
            source.const_data_ptr<T>() + place(source),
            target.mutable_data_ptr<T>() + place(target), cosine, sine, half, work.back);
      }
    }
  }
}

}  // namespace

void rope(const RopeWork& work) {
  if (work.source.is_meta()) return;
  if (work.source.is_cuda()) return rope_on_cuda(work);
  with_float_type(work.source.scalar_type(), [&](auto type) { turn<decltype(type)>(work); });
}

}  // namespace sherd
