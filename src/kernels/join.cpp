// SPDX-License-Identifier: Apache-2.0
#include "kernels/join.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cpu_multiversion.h"

namespace sherd {
namespace {

constexpr int64_t kChunk = 2048;  // of accumulators: they stay in the first-level cache

template <class T>
using Accumulator =
    std::conditional_t<std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>, float, T>;

SHERD_CPU_MULTIVERSION void add(
    float* __restrict sum, const float* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += values[i];
}

SHERD_CPU_MULTIVERSION void add(
    float* __restrict sum, const c10::BFloat16* __restrict values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] += __builtin_bit_cast(float, static_cast<uint32_t>(values[i].x) << 16);
  }
}

template <class T>
void add(Accumulator<T>* sum, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = static_cast<Accumulator<T>>(sum[i] + static_cast<Accumulator<T>>(values[i]));
  }
}

template <class T>
void raise(Accumulator<T>* most, const T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<Accumulator<T>>(values[i]);
    // A NaN on either side stays: a maximum that hides one would hide a broken gradient.
    if (value > most[i] || value != value) most[i] = value;
  }
}

template <class T>
void scale(Accumulator<T>* values, int64_t count, Reduction reduction, int64_t sources) {
  if constexpr (std::is_floating_point_v<Accumulator<T>>) {
    if (reduction.kind == Reduction::Kind::mean) {
      const auto divisor = static_cast<Accumulator<T>>(sources);
      for (int64_t i = 0; i < count; ++i) values[i] /= divisor;
    } else if (reduction.kind == Reduction::Kind::scaled_sum) {
      const auto factor = static_cast<Accumulator<T>>(reduction.factor);
      for (int64_t i = 0; i < count; ++i) values[i] *= factor;
    }
  }
}

template <class T>
void join_as(T* output, std::span<const void* const> sources, int64_t count, Reduction reduction) {
  std::array<Accumulator<T>, kChunk> joined;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t length = std::min(kChunk, count - begin);
    const auto source = [&](size_t k) { return static_cast<const T*>(sources[k]) + begin; };
    for (int64_t i = 0; i < length; ++i) {
      joined[static_cast<size_t>(i)] = static_cast<Accumulator<T>>(source(0)[i]);
    }
    for (size_t k = 1; k < sources.size(); ++k) {
      if (reduction.kind == Reduction::Kind::max) {
        raise<T>(joined.data(), source(k), length);
      } else {
        add(joined.data(), source(k), length);
      }
    }
    scale<T>(joined.data(), length, reduction, std::ssize(sources));
    for (int64_t i = 0; i < length; ++i) {
      output[begin + i] = static_cast<T>(joined[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace

bool can_join(c10::ScalarType dtype, Reduction reduction) {
  const bool scales =
      reduction.kind == Reduction::Kind::mean || reduction.kind == Reduction::Kind::scaled_sum;
  switch (dtype) {
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16: return true;
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long: return !scales;
    default: return false;
  }
}

void join(
    void* output,
    std::span<const void* const> sources,
    int64_t count,
    c10::ScalarType dtype,
    Reduction reduction) {
  TORCH_CHECK_VALUE(
      can_join(dtype, reduction), "[kernels.join] ", dtype, " can't be joined like that");
  const auto as = [&](auto type) {
    using T = decltype(type);
    join_as(static_cast<T*>(output), sources, count, reduction);
  };
  switch (dtype) {
    case c10::ScalarType::Float: return as(float{});
    case c10::ScalarType::Double: return as(double{});
    case c10::ScalarType::Half: return as(c10::Half{});
    case c10::ScalarType::BFloat16: return as(c10::BFloat16{});
    case c10::ScalarType::Byte: return as(uint8_t{});
    case c10::ScalarType::Char: return as(int8_t{});
    case c10::ScalarType::Short: return as(int16_t{});
    case c10::ScalarType::Int: return as(int32_t{});
    default: return as(int64_t{});
  }
}

}  // namespace sherd
