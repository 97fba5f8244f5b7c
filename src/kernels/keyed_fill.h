// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace sherd {

/// Values that depend on nothing but a key and an element's number: whoever makes an element makes
/// the same one.
struct KeyedValues {
  enum class Kind : uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  double a = 0;  ///< the constant, the lower end, or the mean
  double b = 0;  ///< the upper end, or the standard deviation
};

/// Elements to fill: those numbered `begin` and on.
struct KeyedRun {
  void* data = nullptr;
  c10::ScalarType dtype{};
  int64_t begin = 0;
  int64_t count = 0;
  uint64_t key = 0;
  KeyedValues values;
};

/// On CUDA on the current stream.
void fill_keyed(const KeyedRun& run, c10::Device device);

/// As above, in CUDA memory.
void fill_keyed_on_cuda(const KeyedRun& run, c10::Device device);

}  // namespace sherd
