// SPDX-License-Identifier: Apache-2.0
#include "kernels/join.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace sherd {
namespace {

std::vector<at::Tensor> random_sources(int64_t count, int64_t length, at::ScalarType dtype) {
  std::vector<at::Tensor> sources;
  for (int64_t k = 0; k < count; ++k) {
    sources.push_back(
        c10::isFloatingType(dtype) ? at::randn({length}).to(dtype)
                                   : at::randint(0, 100, {length}).to(dtype));
  }
  return sources;
}

std::vector<const void*> pointers(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> result;
  for (const auto& tensor : tensors) result.push_back(tensor.const_data_ptr());
  return result;
}

/// In the accumulator's dtype and in the order of the sources: what the bits must be.
at::Tensor reference(const std::vector<at::Tensor>& sources, Reduction reduction) {
  const auto dtype = sources[0].scalar_type();
  const auto wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  auto result = sources[0].to(wide).clone();
  for (size_t k = 1; k < sources.size(); ++k) {
    const auto next = sources[k].to(wide);
    result = reduction.kind == Reduction::Kind::max ? at::maximum(result, next) : result + next;
  }
  if (reduction.kind == Reduction::Kind::mean)
    result = result / static_cast<double>(sources.size());
  if (reduction.kind == Reduction::Kind::scaled_sum) result = result * reduction.factor;
  return result.to(dtype);
}

TEST(JoinTest, HasTheBitsOfTheReferenceForEveryDtypeWayAndLength) {
  at::manual_seed(3);
  const std::vector<Reduction> ways{
      Reduction::sum(), Reduction::mean(), Reduction::max(), Reduction::scaled_sum(0.3)};
  int checked = 0;
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kChar, at::kShort,
        at::kInt, at::kLong}) {
    for (const auto& way : ways) {
      if (!can_join(dtype, way)) continue;
      for (const int64_t length : {0, 1, 7, 2048, 2049, 10'001}) {
        for (const int64_t count : {1, 2, 5}) {
          const auto sources = random_sources(count, length, dtype);
          auto output = at::empty({length}, dtype);
          join(output.mutable_data_ptr(), pointers(sources), length, dtype, way);
          EXPECT_TRUE(at::equal(output, reference(sources, way)))
              << dtype << " way " << static_cast<int>(way.kind) << " length " << length << " of "
              << count;
          ++checked;
        }
      }
    }
  }
  EXPECT_EQ(checked, (4 * 4 + 5 * 2) * 6 * 3);
}

TEST(JoinTest, MayWriteOntoOneOfItsSources) {
  const auto sources = random_sources(3, 5000, at::kBFloat16);
  const auto expected = reference(sources, Reduction::sum());
  join(sources[1].mutable_data_ptr(), pointers(sources), 5000, at::kBFloat16, Reduction::sum());
  EXPECT_TRUE(at::equal(sources[1], expected));
}

TEST(JoinTest, KeepsNaNAndInfinity) {
  auto a = at::tensor({1.0f, INFINITY, 3.0f});
  auto b = at::tensor({NAN, 2.0f, -INFINITY});
  auto output = at::empty({3});
  const std::vector<const void*> both{a.const_data_ptr(), b.const_data_ptr()};
  const std::vector<const void*> reversed{b.const_data_ptr(), a.const_data_ptr()};
  for (const auto& sources : {both, reversed}) {
    join(output.mutable_data_ptr(), sources, 3, at::kFloat, Reduction::max());
    EXPECT_TRUE(std::isnan(output[0].item<float>()));
    EXPECT_EQ(output[1].item<float>(), INFINITY);
    EXPECT_EQ(output[2].item<float>(), 3);
  }
}

TEST(JoinTest, RefusesWhatHasNoMeaning) {
  EXPECT_FALSE(can_join(at::kInt, Reduction::mean()));
  EXPECT_FALSE(can_join(at::kLong, Reduction::scaled_sum(2)));
  EXPECT_FALSE(can_join(at::kBool, Reduction::sum()));
  EXPECT_FALSE(can_join(at::kFloat8_e4m3fn, Reduction::sum()));
  const std::vector<const void*> none{nullptr};
  EXPECT_THROW(join(nullptr, none, 1, at::kBool, Reduction::sum()), c10::ValueError);
}

}  // namespace
}  // namespace sherd
