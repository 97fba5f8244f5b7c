// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sherd {

constexpr int kWarp = 32;  // threads
constexpr unsigned kAllLanes = 0xffffffffu;

/// Elements that a thread reads or writes together, at most 16 bytes at a time.
template <class T, int kCount>
struct alignas(std::min<size_t>(sizeof(T) * kCount, 16)) Vector {
  T values[kCount];
};

template <int kCount, class T>
__device__ Vector<T, kCount> load(const T* data) {
  return *reinterpret_cast<const Vector<T, kCount>*>(data);
}

/// As one instruction: left to itself, the compiler may write word by word.
template <class T, int kCount>
__device__ void store(T* data, const Vector<T, kCount>& vector) {
  if constexpr (sizeof(vector) == sizeof(uint4)) {
    const auto& words = reinterpret_cast<const uint4&>(vector);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(data)),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
  } else {
    *reinterpret_cast<Vector<T, kCount>*>(data) = vector;
  }
}

/// Keeps the compiler from taking the elements apart, into twice as many registers, before this.
/// What it made of them earlier it makes again.
template <class T, int kCount>
__device__ void keep_packed(Vector<T, kCount>& vector) {
  if constexpr (sizeof(vector) == sizeof(uint4)) {
    auto& words = reinterpret_cast<uint4&>(vector);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  }
}

}  // namespace sherd
