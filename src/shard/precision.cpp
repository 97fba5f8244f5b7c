// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/precision.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <map>

namespace sherd {
namespace {

constexpr auto kFp32 = c10::ScalarType::Float;
constexpr auto kBf16 = c10::ScalarType::BFloat16;
constexpr auto kFp16 = c10::ScalarType::Half;

Precision narrow_compute(c10::ScalarType dtype) {
  return {.compute = dtype, .main = kFp32, .gradient = kFp32, .reduce = kFp32};
}

Precision narrow_products(Fp8 recipe) {
  auto precision = narrow_compute(kBf16);
  precision.fp8 = recipe;
  return precision;
}

const std::map<std::string, Precision>& by_name() {
  static const std::map<std::string, Precision> all{
      {"fp32", {.compute = kFp32, .main = kFp32, .gradient = kFp32, .reduce = kFp32}},
      {"bf16_o1",
       {.compute = kFp32,
        .main = kFp32,
        .gradient = kFp32,
        .reduce = kFp32,
        .autocast = kBf16,
        .cast_inputs = false}},
      {"bf16_o2", narrow_compute(kBf16)},
      {"bf16_o3", {.compute = kBf16, .main = kBf16, .gradient = kBf16, .reduce = kBf16}},
      {"fp16", narrow_compute(kFp16)},
      {"fp8", narrow_products(Fp8::rows)},
      {"fp8_wgrad16", narrow_products(Fp8::rows_wgrad16)},
      {"fp8_block", narrow_products(Fp8::blocks)},
      {"mxfp8", narrow_products(Fp8::mx)}};
  return all;
}

}  // namespace

const std::vector<std::string>& Precision::recipes() {
  static const auto names = [] {
    std::vector<std::string> result;
    for (const auto& [name, precision] : by_name()) result.push_back(name);
    return result;
  }();
  return names;
}

Precision Precision::recipe(const std::string& name) {
  const auto found = by_name().find(name);
  TORCH_CHECK_VALUE(
      found != by_name().end(), "[shard] there is no precision recipe '", name, "': use one of ",
      c10::Join(", ", recipes()));
  return found->second;
}

RoleDtypes resolve(const Precision& precision, c10::ScalarType parameter, bool trainable) {
  if (!c10::isFloatingType(parameter)) return {parameter, parameter, parameter, parameter};
  RoleDtypes dtypes;
  dtypes.model = precision.compute.value_or(parameter);
  dtypes.main = trainable ? precision.main.value_or(parameter) : dtypes.model;
  dtypes.gradient = trainable ? precision.gradient.value_or(dtypes.main) : dtypes.model;
  dtypes.reduce = trainable ? precision.reduce.value_or(dtypes.gradient) : dtypes.model;
  return dtypes;
}

}  // namespace sherd
