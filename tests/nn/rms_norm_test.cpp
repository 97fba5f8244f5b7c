// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/functional.h"

#include "nn/comparison.h"

namespace sherd::testing {
namespace {

constexpr double kEpsilon = 1e-5;

/// Rows that are a warp's and a block's, that fill their vectors and don't, that have none.
const std::vector<std::pair<int64_t, int64_t>> kShapes{
    {1, 8},    {3, 7},      {0, 16},   {5, 3},     {17, 64},  {9, 72},
    {1, 128},  {33, 1000},  {2, 1024}, {6, 1032},  {5, 2048}, {3, 4096},
    {2, 4097}, {700, 4096}, {1, 8192}, {2, 16384}, {1, 20480}};

/// The longest row on CUDA has 64 KiB.
bool is_too_long(int64_t dim, at::ScalarType dtype) {
  return dim * static_cast<int64_t>(c10::elementSize(dtype)) > 65536;
}

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + kEpsilon).rsqrt() * weight;
}

class RmsNormTest : public OnDevice {};

TEST_P(RmsNormTest, NormAndGradientsAreThoseOfPlainOperations) {
  for (const auto dtype : kDtypes) {
    for (const auto& [rows, dim] : kShapes) {
      if (is_too_long(dim, dtype)) continue;
      const auto x = leaf({rows, dim}, dtype, 3), weight = leaf({dim}, dtype);
      const auto x64 = twin(x), weight64 = twin(weight);
      const auto y = rms_norm(x, weight, kEpsilon);
      const auto y64 = plain_norm(x64, weight64);
      expect_rounded_once(y, y64, "y");
      const auto seed = random({rows, dim}, dtype);
      y.backward(seed);
      y64.backward(wide(seed));
      expect_rounded_once(x.grad(), x64.grad(), "gradient of x");
      expect_rounded_once(weight.grad(), weight64.grad(), "gradient of the weight");
    }
  }
}

TEST_P(RmsNormTest, WithAResidualTheSumIsReturnedAndItsGradientAdded) {
  for (const auto dtype : kDtypes) {
    for (const auto& [rows, dim] : kShapes) {
      if (is_too_long(dim, dtype)) continue;
      const auto x = leaf({rows, dim}, dtype), residual = leaf({rows, dim}, dtype, 3);
      const auto weight = leaf({dim}, dtype);
      const auto x64 = twin(x), residual64 = twin(residual), weight64 = twin(weight);
      const auto [sum, y] = add_rms_norm(x, residual, weight, kEpsilon);
      const auto sum64 = stored(x64 + residual64, dtype);
      const auto y64 = plain_norm(sum64, weight64);
      EXPECT_TRUE(at::equal(sum, x + residual)) << dtype << rows << "x" << dim;
      expect_rounded_once(y, y64, "y");
      const auto seed = random({rows, dim}, dtype), more = random({rows, dim}, dtype);
      at::Tensor(sum * more + y * seed).sum().backward();
      ((sum64 * wide(more)).sum() + (y64 * wide(seed)).sum()).backward();
      expect_rounded_once(x.grad(), x64.grad(), "gradient of x");
      EXPECT_TRUE(at::equal(x.grad(), residual.grad()));
      expect_rounded_once(weight.grad(), weight64.grad(), "gradient of the weight");
    }
  }
}

/// On a GPU so many that blocks have several each: what is fetched ahead takes turns.
TEST_P(RmsNormTest, ManyRows) {
  const int64_t many = device().is_cuda() ? 300 : 3;
  for (const auto& [rows, dim] :
       {std::pair<int64_t, int64_t>{10 * many, 4096}, {5 * many, 8192}, {30 * many, 512}}) {
    const auto x = leaf({rows, dim}, at::kBFloat16, 3), weight = leaf({dim}, at::kBFloat16);
    const auto x64 = twin(x), weight64 = twin(weight);
    const auto seed = random({rows, dim}, at::kBFloat16);
    rms_norm(x, weight, kEpsilon).backward(seed);
    plain_norm(x64, weight64).backward(wide(seed));
    expect_rounded_once(x.grad(), x64.grad(), "gradient of x");
    expect_rounded_once(weight.grad(), weight64.grad(), "gradient of the weight");
  }
}

TEST_P(RmsNormTest, GradientsOfOneOutputAlone) {
  const auto x = leaf({4, 64}, at::kFloat), residual = leaf({4, 64}, at::kFloat);
  const auto weight = leaf({64}, at::kFloat);
  const auto x64 = twin(x), residual64 = twin(residual), weight64 = twin(weight);
  const auto seed = random({4, 64}, at::kFloat);
  std::get<0>(add_rms_norm(x, residual, weight, kEpsilon)).backward(seed);
  EXPECT_TRUE(at::equal(x.grad(), seed)) << "of the sum";
  EXPECT_FALSE(weight.grad().defined());
  x.mutable_grad().reset();
  std::get<1>(add_rms_norm(x, residual, weight, kEpsilon)).backward(seed);
  plain_norm(x64 + residual64, weight64).backward(wide(seed));
  expect_rounded_once(x.grad(), x64.grad(), "gradient of x by y alone");
}

TEST_P(RmsNormTest, MoreDimsOtherStridesOtherWeightDtypesAndFrozenWeights) {
  const auto base = leaf({6, 5, 2, 32}, at::kBFloat16);
  const auto weight = leaf({32}, at::kFloat);
  const auto x = base.transpose(0, 2).narrow(2, 1, 3);
  const auto base64 = twin(base), weight64 = twin(weight);
  const auto y = rms_norm(x, weight, kEpsilon);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const auto seed = random(y.sizes(), at::kBFloat16);
  y.backward(seed);
  plain_norm(base64.transpose(0, 2).narrow(2, 1, 3), stored(weight64, at::kBFloat16))
      .backward(wide(seed));
  expect_rounded_once(base.grad(), base64.grad(), "gradient of x");
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  expect_rounded_once(weight.grad(), weight64.grad(), "gradient of the weight");

  const auto again = base.grad().clone();
  base.mutable_grad().reset();
  rms_norm(x, weight.detach(), kEpsilon).backward(seed);
  EXPECT_TRUE(at::equal(base.grad(), again));
}

TEST_P(RmsNormTest, MisalignedRowsAreRowsToo) {
  const auto buffer = random({5 * 64 + 1}, at::kBFloat16);
  const auto x = buffer.narrow(0, 1, 5 * 64).view({5, 64}).set_requires_grad(true);
  const auto weight = leaf({64}, at::kBFloat16);
  const auto x64 = twin(x), weight64 = twin(weight);
  rms_norm(x, weight, kEpsilon).sum().backward();
  plain_norm(x64, weight64).sum().backward();
  expect_rounded_once(x.grad(), x64.grad(), "gradient of x");
}

TEST_P(RmsNormTest, TwoRunsHaveTheSameBits) {
  const auto x = leaf({1500, 512}, at::kBFloat16), weight = leaf({512}, at::kBFloat16);
  const auto seed = random({1500, 512}, at::kBFloat16);
  at::Tensor first;
  for (int run = 0; run < 3; ++run) {
    weight.mutable_grad().reset();
    rms_norm(x, weight, kEpsilon).backward(seed);
    if (run == 0) first = weight.grad().clone();
    EXPECT_TRUE(at::equal(weight.grad(), first));
  }
}

TEST_P(RmsNormTest, WrongShapesAndSecondDerivativesAreErrors) {
  const auto x = leaf({2, 8}, at::kFloat), weight = leaf({8}, at::kFloat);
  EXPECT_THROW(rms_norm(x, leaf({4}, at::kFloat), kEpsilon), c10::Error);
  EXPECT_THROW(rms_norm(x.to(at::kInt), weight, kEpsilon), c10::Error);
  EXPECT_THROW(add_rms_norm(x, leaf({3, 8}, at::kFloat), weight, kEpsilon), c10::Error);
  const auto y = rms_norm(x, weight, kEpsilon).sum();
  EXPECT_THROW(y.backward({}, /*retain_graph=*/true, /*create_graph=*/true), c10::Error);
}

SHERD_ON_DEVICES(RmsNormTest);

}  // namespace
}  // namespace sherd::testing
