// SPDX-License-Identifier: Apache-2.0
// The kernels that move values between buffers, on every device that this machine has.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "device_list.h"
#include "kernels/cast_copy.h"
#include "kernels/repeat.h"

namespace sherd {
namespace {

constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

/// Elements of a buffer, of which the first lies `offset` elements off an aligned address.
at::Tensor values(int64_t count, int64_t offset, at::ScalarType dtype, c10::Device device) {
  return at::randn({offset + count}).to(dtype).to(device).narrow(0, offset, count);
}

/// The expected content of the target after a copy, computed on CPU in the dtype that the kernel
/// promises.
at::Tensor expected(const at::Tensor& target, const at::Tensor& source, bool add, double divisor) {
  const bool wide = target.scalar_type() == at::kDouble || source.scalar_type() == at::kDouble;
  const auto math = wide ? at::kDouble : at::kFloat;
  auto value = source.cpu().to(math) / at::full({}, divisor, math);
  if (add) value = target.cpu().to(math) + value;
  return value.to(target.scalar_type());
}

class CopiesTest : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { at::manual_seed(5); }
  c10::Device device() const { return c10::Device(GetParam()); }
};

TEST_P(CopiesTest, ACastCopyHasTheBitsOfTheReferenceForEveryDtypeWayAndAlignment) {
  for (const auto target_dtype : kDtypes) {
    for (const auto source_dtype : kDtypes) {
      for (const double divisor : {1.0, 3.0}) {
        for (const bool add : {false, true}) {
          std::vector<at::Tensor> targets, sources, wanted;
          std::vector<CastCopy> copies;
          for (const int64_t count : {0, 1, 3, 4, 5, 1025, 5000}) {
            for (const int64_t offset : {0, 1}) {
              targets.push_back(values(count, offset, target_dtype, device()));
              sources.push_back(values(count, 1 - offset, source_dtype, device()));
              wanted.push_back(expected(targets.back(), sources.back(), add, divisor));
              copies.push_back(
                  {targets.back().mutable_data_ptr(), sources.back().const_data_ptr(), count, add});
            }
          }
          cast_copy(copies, {target_dtype, source_dtype, divisor}, device());
          for (size_t i = 0; i < targets.size(); ++i) {
            EXPECT_TRUE(at::equal(targets[i].cpu(), wanted[i]))
                << source_dtype << " to " << target_dtype << (add ? ", added" : "") << ", over "
                << divisor << ": " << targets[i].numel() << " elements";
          }
        }
      }
    }
  }
}

TEST_P(CopiesTest, MoreCastCopiesThanOneLaunchTakesAreAllMade) {
  const auto source = values(200, 0, at::kFloat, device());
  auto target = at::zeros_like(source);
  std::vector<CastCopy> copies;
  for (int64_t i = 0; i < 200; ++i) {
    copies.push_back(
        {target.narrow(0, i, 1).mutable_data_ptr(), source.narrow(0, 199 - i, 1).const_data_ptr(),
         1, false});
  }
  cast_copy(copies, {at::kFloat, at::kFloat, 1}, device());
  EXPECT_TRUE(at::equal(target.cpu(), source.cpu().flip(0)));
}

TEST_P(CopiesTest, ACastCopyOntoItselfDividesInPlace) {
  auto target = values(1001, 0, at::kFloat, device());
  const auto wanted = expected(target, target, false, 7);
  const std::vector<CastCopy> copies{
      {target.mutable_data_ptr(), target.const_data_ptr(), target.numel(), false}};
  cast_copy(copies, {at::kFloat, at::kFloat, 7}, device());
  EXPECT_TRUE(at::equal(target.cpu(), wanted));
}

TEST_P(CopiesTest, RepeatFillsEveryCopyForEveryLengthAlignmentAndPlaceOfTheSource) {
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device());
  for (const int64_t length : {0, 1, 4, 12, 16, 4099, 4112, 2'000'000}) {
    for (const int64_t count : {1, 2, 5}) {
      for (const int64_t offset : {0, 1, 4}) {
        auto target = at::zeros({offset + length * count + 3}, bytes);
        for (int64_t own = -1; own < count; ++own) {  // -1: elsewhere
          target.zero_();
          const auto shard = at::randint(1, 256, {length}, bytes);
          const auto source = own < 0 ? shard : target.narrow(0, offset + own * length, length);
          if (own >= 0) source.copy_(shard);
          auto place = target.narrow(0, offset, length * count);
          repeat(place.mutable_data_ptr(), source.const_data_ptr(), length, count, device());
          const auto wanted = at::constant_pad_nd(shard.repeat({count}), {offset, 3});
          EXPECT_TRUE(at::equal(target, wanted))
              << count << " x " << length << " bytes at " << offset << ", source " << own;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Devices, CopiesTest, ::testing::ValuesIn(testing::devices()), [](const auto& one) {
      return c10::DeviceTypeName(one.param, /*lower_case=*/true);
    });

}  // namespace
}  // namespace sherd
