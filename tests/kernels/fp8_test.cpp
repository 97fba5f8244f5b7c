// SPDX-License-Identifier: Apache-2.0
// Encoders and products of fp8, against references made with torch's casts and fp64, on every
// device that this machine has.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device_list.h"
#include "kernels/fp8/encode_weights.h"
#include "kernels/fp8/fp8_math.h"
#include "kernels/fp8/fused.h"
#include "kernels/fp8/scaled_product.h"

namespace sherd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- references ---------------------------------------------------------------------------------

/// The least power of two s with amax ≤ 448 s, from 2^-126 on.
double reference_scale(const at::Tensor& values) {
  const double amax = values.numel() ? values.to(at::kDouble).abs().max().item<double>() : 0;
  if (!std::isfinite(amax)) return std::numeric_limits<double>::quiet_NaN();
  if (amax == 0) return 0;
  double scale = std::ldexp(1.0, -126);
  while (amax > 448 * scale) scale *= 2;
  return scale;
}

/// The bytes of values / scale by torch's own cast; NaN has one byte.
at::Tensor reference_bytes(const at::Tensor& values, double scale) {
  const double divisor = scale == 0 ? 1 : scale;  // zeros keep their signs
  const auto bytes =
      (values.to(at::kDouble) / divisor).to(at::kFloat).to(at::kFloat8_e4m3fn).view(at::kByte);
  return at::where(bytes.bitwise_and(0x7f) == 0x7f, at::full({}, 0x7f, at::kByte), bytes);
}

at::Tensor bytes_of(const at::Tensor& values) {
  return values.cpu().view(at::kByte);
}

/// Encodes blocks of `down` × `across` elements, each with a scale of its own; `scales` has one row
/// for each row of blocks.
struct Reference {
  at::Tensor bytes;
  at::Tensor scales;  // fp64
  Reference(const at::Tensor& x, int64_t down, int64_t across)
      : bytes(at::empty(x.sizes(), at::kByte)),
        scales(at::empty({x.size(0) / down, x.size(1) / across}, at::kDouble)) {
    const auto wide = x.cpu().to(at::kFloat);
    for (int64_t i = 0; i < scales.size(0); ++i) {
      for (int64_t j = 0; j < scales.size(1); ++j) {
        const auto block = wide.narrow(0, i * down, down).narrow(1, j * across, across);
        const double scale = reference_scale(block);
        scales[i][j] = scale;
        bytes.narrow(0, i * down, down)
            .narrow(1, j * across, across)
            .copy_(reference_bytes(block, scale));
      }
    }
  }
};

void expect_scales(const at::Tensor& found, const at::Tensor& wanted) {
  auto numbers = found.cpu();
  if (numbers.scalar_type() == at::kByte) {
    const auto exponents = numbers.to(at::kDouble);
    numbers = at::where(
        exponents == 255, at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble),
        at::where(exponents == 0, at::zeros({}, at::kDouble), at::exp2(exponents - 127)));
  }
  EXPECT_TRUE(at::allclose(numbers.to(at::kDouble), wanted, 0, 0, /*equal_nan=*/true));
}

// ---- single numbers -----------------------------------------------------------------------------

TEST(Fp8Numbers, EveryNumberOfSixteenBitsIsEncodedAsTorchDoesIt) {
  const auto bits = at::arange(65536, at::kInt).to(at::kShort);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto values = bits.view(dtype).to(at::kFloat);
    const auto wanted = reference_bytes(values, 1);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const auto value = values[i].item<float>();
      EXPECT_EQ(fp8::encode(value), wanted[i].item<uint8_t>()) << value;
    }
  }
  for (const float tie : {464.0f, 465.0f, 479.9f, 480.0f, 0.0009765625f, 0.0029296875f, -1.0625f}) {
    EXPECT_EQ(fp8::encode(tie), reference_bytes(at::full({1}, tie), 1).item<uint8_t>()) << tie;
  }
}

TEST(Fp8Numbers, EveryByteIsDecodedAsTorchDoesIt) {
  const auto wanted =
      at::arange(256, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn).to(at::kFloat);
  for (int i = 0; i < 256; ++i) {
    const float found = fp8::decode(static_cast<uint8_t>(i));
    const auto value = wanted[i].item<float>();
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(found)) << i;
    } else {
      EXPECT_EQ(fp8::bits_of(found), fp8::bits_of(value)) << i;
    }
  }
}

TEST(Fp8Numbers, AScaleIsTheLeastPowerOfTwoThatSaturatesNothing) {
  for (const float amax :
       {448.0f, std::nextafter(448.0f, 1000.0f), 447.9f, 1.0f, 1.75f, 1.7500001f, 3.4e38f, 1e-30f,
        2e-36f, 1e-38f, 1e-44f, 0.0f, kInfinity, std::nanf("")}) {
    const float found = fp8::scale_of(fp8::magnitude_bits(-amax));
    const double wanted = reference_scale(at::full({1}, amax));
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(found)) << amax;
      continue;
    }
    EXPECT_EQ(static_cast<double>(found), wanted) << amax;
    EXPECT_EQ(fp8::inverse_of(found) * found, amax == 0 ? 0.0f : 1.0f) << amax;
    EXPECT_TRUE(std::isfinite(fp8::inverse_of(found))) << amax;
    EXPECT_EQ(fp8::scale_from(fp8::exponent_of(found)), found) << amax;
  }
  EXPECT_TRUE(std::isnan(fp8::inverse_of(std::nanf(""))));
}

// ---- encoders -----------------------------------------------------------------------------------

class Fp8Test : public ::testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override { at::manual_seed(7); }
  c10::Device device() const { return c10::Device(GetParam()); }

  /// Rows of very different sizes; zeros, the smallest numbers, and, with `bad`, a NaN and an
  /// infinity among them.
  at::Tensor rows(int64_t count, int64_t columns, c10::ScalarType dtype, bool bad = false) const {
    auto x = at::randn({count, columns}) * at::exp2(at::randn({count, 1}) * 6);
    if (count > 3) x[1] = 0;
    if (count > 3) x[2] = at::randn({columns}) * 1e-39;
    if (bad && count > 5) x[4][columns / 2] = std::nanf("");
    if (bad && count > 5) x[5][columns - 1] = -kInfinity;
    return x.to(dtype).to(device());
  }
};

TEST_P(Fp8Test, RowsHaveTheBytesOfTheReference) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [count, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 128}, {7, 384}, {130, 4224}, {3, 20480}}) {
      const auto x = rows(count, columns, dtype, /*bad=*/true);
      const auto by_row = encode_rows(x, Scaling::row);
      const Reference row(x, 1, columns);
      EXPECT_TRUE(at::equal(bytes_of(by_row.values), row.bytes)) << dtype << count;
      expect_scales(by_row.scales, row.scales.flatten());
      const auto by_tile = encode_rows(x, Scaling::tile);
      const Reference tile(x, 1, kFp8Tile);
      EXPECT_TRUE(at::equal(bytes_of(by_tile.values), tile.bytes)) << dtype << count;
      expect_scales(by_tile.scales, tile.scales.t());
      const auto by_mx = encode_rows(x, Scaling::mx_row);
      const Reference mx(x, 1, kMxBlock);
      EXPECT_TRUE(at::equal(bytes_of(by_mx.values), mx.bytes)) << dtype << count;
      expect_scales(by_mx.scales, mx.scales);
    }
  }
}

TEST_P(Fp8Test, ColumnsHaveTheBytesOfTheReference) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t count : {1, 33, 128, 200}) {
      const auto x = rows(count, 48, dtype, /*bad=*/true);
      const auto extended = [&](int64_t length) {
        auto result = at::zeros({length, x.size(1)});
        result.narrow(0, 0, count).copy_(x.cpu());
        return result;
      };
      const auto tiles = encode_columns(x, Scaling::tile);
      const Reference tile(extended(padded(count, kFp8Tile)).t(), 1, kFp8Tile);
      EXPECT_TRUE(at::equal(bytes_of(tiles.values), tile.bytes)) << count;
      expect_scales(tiles.scales, tile.scales.t());
      const auto blocks = encode_columns(x, Scaling::mx_column);
      const Reference mx(extended(padded(count, kMxBlock)), kMxBlock, 1);
      EXPECT_TRUE(at::equal(bytes_of(blocks.values), mx.bytes)) << count;
      expect_scales(blocks.scales, mx.scales);
    }
  }
}

TEST_P(Fp8Test, AGradientsColumnsAreItsRowsTransposed) {
  for (const int64_t count : {1, 16, 37, 300}) {
    for (const int64_t columns : {16, 80, 4112}) {
      const auto gradient = rows(count, columns, at::kBFloat16);
      const auto input = encode_rows(rows(count, 64, at::kBFloat16), Scaling::row);
      const auto found = encode_gradient(gradient, input.scales);
      const Reference row(gradient, 1, columns);
      EXPECT_TRUE(at::equal(bytes_of(found.rows.values), row.bytes));
      expect_scales(found.rows.scales, row.scales.flatten());
      auto transposed = at::zeros({columns, padded(count, 16)}, at::kByte);
      transposed.narrow(1, 0, count).copy_(row.bytes.t());
      EXPECT_TRUE(at::equal(bytes_of(found.columns.values), transposed)) << count << columns;
      const auto products = found.rows.scales.cpu() * input.scales.cpu();
      EXPECT_EQ(found.bound.item<float>(), products.max().item<float>());
    }
  }
}

TEST_P(Fp8Test, AnInputIsEncodedAgainWithTheGradientsScales) {
  for (const int64_t count : {5, 128, 259}) {
    const auto input = rows(count, 144, at::kBFloat16);
    const auto forward = encode_rows(input, Scaling::row);
    const auto gradient = encode_gradient(rows(count, 32, at::kBFloat16), forward.scales);
    const auto again = encode_input_again(input, gradient);
    const auto scaled =
        input.cpu().to(at::kDouble) * gradient.rows.scales.cpu().to(at::kDouble).unsqueeze(1);
    auto wanted = at::zeros({144, padded(count, 16)}, at::kByte);
    wanted.narrow(1, 0, count).copy_(reference_bytes(scaled, gradient.bound.item<double>()).t());
    EXPECT_TRUE(at::equal(bytes_of(again.values), wanted)) << count;
    EXPECT_TRUE(again.scales.is_same(gradient.bound));
  }
}

TEST_P(Fp8Test, ANumberThatIsNotFiniteMakesItsRowAndTheWeightsGradientNaN) {
  auto gradient = rows(20, 32, at::kBFloat16);
  gradient[3][7] = kInfinity;
  const auto input = rows(20, 48, at::kBFloat16);
  const auto forward = encode_rows(input, Scaling::row);
  const auto encoded = encode_gradient(gradient, forward.scales);
  EXPECT_TRUE(at::isnan(encoded.bound).item<bool>());
  const auto decoded = decode(encoded.rows, at::kFloat).cpu();
  EXPECT_TRUE(at::isnan(decoded[3]).all().item<bool>());
  EXPECT_FALSE(at::isnan(decoded[4]).any().item<bool>());
  const auto again = decode(encode_input_again(input, encoded), at::kFloat).cpu();
  EXPECT_TRUE(at::isnan(again.narrow(1, 0, 20)).all().item<bool>());
}

// ---- weights ------------------------------------------------------------------------------------

TEST_P(Fp8Test, WeightsInPiecesHaveOneScale) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto weights = std::vector{
        (at::randn({37, 48}) * 3e-3).to(dtype).to(device()),
        (at::randn({4099}) * 50).to(dtype).to(device()), at::zeros({64}).to(dtype).to(device())};
    const auto numbers = at::TensorOptions().device(device());
    const auto amaxes = at::zeros({3}, numbers.dtype(at::kInt));
    const auto scales = at::empty({3}, numbers.dtype(at::kFloat));
    std::vector<at::Tensor> bytes;
    std::vector<WeightPiece> pieces;
    for (int64_t i = 0; i < 3; ++i) {
      const auto& weight = weights[static_cast<size_t>(i)];
      bytes.push_back(at::empty({weight.numel()}, numbers.dtype(at::kByte)));
      const int64_t cut = weight.numel() / 3;  // not aligned
      auto* values = bytes.back().mutable_data_ptr<uint8_t>();
      const auto* source = static_cast<const char*>(weight.const_data_ptr());
      pieces.push_back({values, source, cut, i});
      pieces.push_back(
          {values + cut, source + cut * weight.element_size(), weight.numel() - cut, i});
    }
    measure_weights(pieces, dtype, amaxes);
    encode_weights(pieces, dtype, amaxes, scales);
    for (size_t i = 0; i < 3; ++i) {
      const auto flat = weights[i].cpu().to(at::kFloat).flatten();
      const double scale = reference_scale(flat);
      EXPECT_EQ(scales[static_cast<int64_t>(i)].item<double>(), scale);
      EXPECT_TRUE(at::equal(bytes[i].cpu(), reference_bytes(flat, scale))) << i << dtype;
    }
  }
}

TEST_P(Fp8Test, WeightRowsHaveTheBytesOfTheReference) {
  struct Case {
    Scaling scaling;
    int64_t down, across;
    c10::ScalarType scales;
  };
  for (const auto& [scaling, down, across, scale_dtype] :
       {Case{Scaling::block, 128, 128, at::kFloat}, Case{Scaling::mx_row, 1, 32, at::kByte},
        Case{Scaling::mx_column, 32, 1, at::kByte}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto x = rows(256, 384, dtype);
      const auto options = at::TensorOptions().device(device());
      const auto values = at::empty({256, 384}, options.dtype(at::kByte));
      const auto scales = at::empty({256 / down, 384 / across}, options.dtype(scale_dtype));
      const WeightRows one{
          values.mutable_data_ptr(), scales.mutable_data_ptr(), x.const_data_ptr(), 256, 384};
      encode_weight_rows(std::span(&one, 1), dtype, scaling, device());
      const Reference wanted(x, down, across);
      EXPECT_TRUE(at::equal(values.cpu(), wanted.bytes)) << down << across << dtype;
      expect_scales(scales, wanted.scales);
    }
  }
}

TEST_P(Fp8Test, MatricesAreTransposed) {
  for (const auto dtype : {at::kByte, at::kInt}) {
    for (const auto& [down, across] : std::vector<std::pair<int64_t, int64_t>>{
             {16, 16}, {1, 5}, {130, 67}, {64, 4096}, {272, 144}}) {
      const auto source = at::randint(0, 255, {down, across}, at::kLong).to(dtype).to(device());
      const auto target = at::zeros({across, down}, source.options());
      const Transposition one{target.mutable_data_ptr(), source.const_data_ptr(), down, across};
      transpose(std::span(&one, 1), source.element_size(), device());
      EXPECT_TRUE(at::equal(target, source.t())) << down << ' ' << across << ' ' << dtype;
    }
  }
}

// ---- products -----------------------------------------------------------------------------------

double decibels(const at::Tensor& wanted, const at::Tensor& found) {
  const auto wide = wanted.cpu().to(at::kDouble);
  const auto error = found.cpu().to(at::kDouble) - wide;
  return 20 * std::log10(wide.norm().item<double>() / error.norm().item<double>());
}

TEST_P(Fp8Test, AProductIsThatOfTheDecodedMatrices) {
  const int64_t T = 144, K = 384, M = 256;
  const auto x = encode_rows(rows(T, K, at::kBFloat16), Scaling::row);
  const auto weight = at::randn({M, K}, at::TensorOptions().device(device()));
  auto by_tensor = encode_rows(weight.reshape({1, M * K}), Scaling::row);
  by_tensor = {by_tensor.values.view({M, K}), by_tensor.scales, Scaling::tensor};
  const auto exact = [](const Fp8Matrix& a, const Fp8Matrix& b) {
    const auto wide = [](const Fp8Matrix& one) {
      return (one.scales.defined() ? decode(one, at::kFloat) : one.values.to(at::kFloat))
          .cpu()
          .to(at::kDouble);
    };
    return at::mm(wide(a), wide(b).t());
  };
  // Forward, and with a summand.
  for (const bool fast : {false, true}) {
    const auto out = at::empty({T, M}, x.scales.options().dtype(at::kBFloat16));
    scaled_product({x, by_tensor, out, {}, fast});
    EXPECT_GT(decibels(exact(x, by_tensor), out), 45) << "rounded to 16 bits";
    const auto summand = at::randn({T, M}, out.options()) * 30;
    const auto sum = at::empty_like(out);
    scaled_product({x, by_tensor, sum, summand, fast});
    EXPECT_GT(decibels(exact(x, by_tensor) + summand.cpu().to(at::kDouble), sum), 45);
  }
  // A weight's gradient, set and added to.
  const auto gradient = encode_gradient(rows(T, M, at::kBFloat16), x.scales);
  const auto again = encode_input_again(rows(T, K, at::kBFloat16), gradient);
  const auto wanted = exact(gradient.columns, again);
  const auto buffer = at::full({M, K}, 1e30, x.scales.options());
  scaled_product({gradient.columns, again, buffer});
  const double once = GetParam() == c10::kCPU ? 100 : 60;
  EXPECT_GT(decibels(wanted, buffer), once);
  scaled_product({gradient.columns, again, buffer, buffer});
  EXPECT_GT(decibels(2 * wanted, buffer), once);
}

/// Tokens whose loss does not count have gradients of 0, all others small ones.
TEST_P(Fp8Test, TokensWithoutGradientDoNotCoarsenAWeightsGradient) {
  const int64_t T = 256, K = 64, M = 48;
  const auto options = at::TensorOptions().device(device());
  auto input = at::randn({T, K}, options).to(at::kBFloat16);
  auto gradient = (at::randn({T, M}, options) * 1e-7).to(at::kBFloat16);
  gradient[5].zero_();
  input[9].zero_();
  const auto weight_gradient = [&] {
    const auto encoded = encode_gradient(gradient, encode_rows(input, Scaling::row).scales);
    const auto result = at::full({M, K}, 1e30, options);
    scaled_product({encoded.columns, encode_input_again(input, encoded), result});
    return result;
  };
  const auto wide = [](const at::Tensor& x) { return x.cpu().to(at::kDouble); };
  EXPECT_GT(decibels(at::mm(wide(gradient).t(), wide(input)), weight_gradient()), 26);
  gradient.zero_();
  EXPECT_EQ(weight_gradient().abs().max().item<float>(), 0);
}

TEST_P(Fp8Test, AProductOfTilesAndBlocks) {
  const int64_t T = 160, K = 512, M = 256;
  const auto x = encode_rows(rows(T, K, at::kBFloat16), Scaling::tile);
  const auto weight = at::randn({M, K}, at::TensorOptions().device(device()));
  Fp8Matrix blocks{
      at::empty({M, K}, weight.options().dtype(at::kFloat8_e4m3fn)),
      at::empty({M / kFp8Tile, K / kFp8Tile}, weight.options()), Scaling::block};
  const WeightRows one{
      blocks.values.mutable_data_ptr(), blocks.scales.mutable_data_ptr(), weight.const_data_ptr(),
      M, K};
  encode_weight_rows(std::span(&one, 1), at::kFloat, Scaling::block, device());
  const auto wide = [](const Fp8Matrix& matrix) {
    return decode(matrix, at::kFloat).cpu().to(at::kDouble);
  };
  const auto out = at::empty({T, M}, weight.options().dtype(at::kBFloat16));
  scaled_product({x, blocks, out});
  EXPECT_GT(decibels(at::mm(wide(x), wide(blocks).t()), out), 45);
  const auto gradient = encode_columns(rows(T, M, at::kBFloat16), Scaling::tile);
  const auto again = encode_columns(rows(T, K, at::kBFloat16), Scaling::tile);
  const auto buffer = at::zeros({M, K}, weight.options());
  scaled_product({gradient, again, buffer, buffer});
  EXPECT_GT(decibels(at::mm(wide(gradient), wide(again).t()), buffer), 60);
}

// ---- fused encoders -----------------------------------------------------------------------------

TEST_P(Fp8Test, ANormsResultIsEncodedBothTimes) {
  for (const int64_t columns : {64, 4096}) {
    const int64_t count = 150;
    const auto x = rows(count, columns, at::kBFloat16);
    const auto residual = at::randn({count, columns}, x.options());
    const auto weight = at::randn({columns}, x.options());
    for (const bool adds : {false, true}) {
      const auto found = encode_normed(x, adds ? residual : at::Tensor(), weight, 1e-5);
      const auto wide = [](const at::Tensor& t) { return t.cpu().to(at::kDouble); };
      const auto sum = adds ? (x.to(at::kFloat) + residual.to(at::kFloat)).to(at::kBFloat16) : x;
      EXPECT_TRUE(at::equal(found.sum, sum));
      const auto scale = (wide(sum).square().mean(-1) + 1e-5).rsqrt();
      EXPECT_TRUE(at::allclose(wide(found.scale), scale, 1e-5, 0));
      const auto y = wide(sum) * scale.unsqueeze(1) * wide(weight);
      const auto ideal = encode_rows(y.to(at::kFloat).to(device()), Scaling::row);
      // Where a sum differs by its last digit, a number may round to its neighbour.
      const auto differs = bytes_of(found.rows.values) != bytes_of(ideal.values);
      EXPECT_LT(differs.to(at::kDouble).mean().item<double>(), 2e-4);
      const auto gradient = encode_gradient(rows(count, 32, at::kBFloat16), found.rows.scales);
      const auto again = encode_normed_again(found.sum, weight, found.scale, gradient);
      const auto ideal_again = encode_input_again(y.to(at::kFloat).to(device()), gradient);
      const auto differs_again = bytes_of(again.values) != bytes_of(ideal_again.values);
      EXPECT_LT(differs_again.to(at::kDouble).mean().item<double>(), 2e-4);
    }
  }
}

TEST_P(Fp8Test, ASwigluAndItsGradientsAreEncoded) {
  const int64_t count = 150, width = 208;
  const auto gate_up = rows(count, 2 * width, at::kBFloat16).clamp(-30, 30);
  const auto wide = gate_up.cpu().to(at::kDouble);
  const auto gate = wide.narrow(1, 0, width), up = wide.narrow(1, width, width);
  const auto open = at::sigmoid(gate);
  const auto on_device = [&](const at::Tensor& t) { return t.to(at::kFloat).to(device()); };
  const auto share = [](const at::Tensor& one, const at::Tensor& other) {
    return (bytes_of(one) != bytes_of(other)).to(at::kDouble).mean().item<double>();
  };
  const auto activation = gate * open * up;
  const auto found = encode_swiglu(gate_up);
  EXPECT_LT(share(found.values, encode_rows(on_device(activation), Scaling::row).values), 5e-4);

  const auto down = encode_gradient(rows(count, 64, at::kBFloat16), found.scales);
  const auto incoming = rows(count, width, at::kBFloat16);
  const auto input = encode_rows(rows(count, 32, at::kBFloat16), Scaling::row);
  const auto gradients = encode_swiglu_gradients(incoming, gate_up, down, input.scales);
  const auto g = incoming.cpu().to(at::kDouble);
  const auto d_gate = g * up * open * (1 + gate - gate * open);
  const auto d_up = g * gate * open;
  const auto ideal = encode_gradient(on_device(at::cat({d_gate, d_up}, 1)), input.scales);
  EXPECT_LT(share(gradients.gate_up.rows.values, ideal.rows.values), 5e-4);
  EXPECT_LT(share(gradients.gate_up.columns.values, ideal.columns.values), 5e-4);
  EXPECT_TRUE(at::equal(gradients.gate_up.rows.scales, ideal.rows.scales));
  EXPECT_TRUE(at::equal(gradients.gate_up.bound, ideal.bound));
  const auto again = encode_input_again(on_device(activation), down);
  EXPECT_LT(share(gradients.activation.values, again.values), 5e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Devices, Fp8Test, ::testing::ValuesIn(testing::devices()), [](const auto& one) {
      return c10::DeviceTypeName(one.param, true);
    });

}  // namespace
}  // namespace sherd
