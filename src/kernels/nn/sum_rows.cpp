// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/sum_rows.h"

#include <algorithm>
#include <vector>

#include "kernels/cast_types.h"

namespace sherd {
namespace {

template <class T, class Result>
void add_up(const RowSums& work) {
  using Math = CastMath<Result, T>;
  const int64_t dim = work.rows.size(1);
  const int64_t count = work.indices.size(1);
  const auto* rows = work.rows.const_data_ptr<T>();
  const auto* indices = work.indices.const_data_ptr<int32_t>();
  const auto* summand = work.summand.defined() ? work.summand.const_data_ptr<Result>() : nullptr;
  auto* result = work.result.mutable_data_ptr<Result>();
  std::vector<Math> sum(static_cast<size_t>(dim));
  for (int64_t token = 0; token < work.indices.size(0); ++token) {
    if (summand) {
      for (int64_t i = 0; i < dim; ++i) {
        sum[static_cast<size_t>(i)] = static_cast<Math>(summand[token * dim + i]);
      }
    } else {
      std::fill(sum.begin(), sum.end(), Math(0));
    }
    for (int64_t k = 0; k < count; ++k) {
      const auto* row = rows + indices[token * count + k] * dim;
      for (int64_t i = 0; i < dim; ++i) sum[static_cast<size_t>(i)] += static_cast<Math>(row[i]);
    }
    for (int64_t i = 0; i < dim; ++i) {
      result[token * dim + i] = cast_to<Result>(sum[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace

void sum_rows(const RowSums& work) {
  if (work.result.is_meta()) return;
  if (work.result.is_cuda()) return sum_rows_on_cuda(work);
  with_float_type(work.rows.scalar_type(), [&](auto type) {
    with_float_type(work.result.scalar_type(), [&](auto result) {
      add_up<decltype(type), decltype(result)>(work);
    });
  });
}

}  // namespace sherd
