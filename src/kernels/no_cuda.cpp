// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include "kernels/adamw.h"
#include "kernels/cast_copy.h"
#include "kernels/fp8/encode_weights.h"
#include "kernels/fp8/fused.h"
#include "kernels/fp8/scaled_product.h"
#include "kernels/keyed_fill.h"
#include "kernels/measure.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/mamba_on_cuda.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/nn/sum_rows.h"
#include "kernels/nn/swiglu.h"
#include "kernels/nn/weighted_swiglu.h"
#include "kernels/occupy.h"
#include "kernels/repeat.h"

namespace sherd {
namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(false, "[kernels] this build of Sherd has no CUDA: put nvcc on PATH and build again");
}

}  // namespace

void note_time(const at::Tensor&, c10::Stream) {
  refuse();
}
void occupy_until(const at::Tensor&, double, int, c10::Stream) {
  refuse();
}
void cast_copy_on_cuda(std::span<const CastCopy>, const CastCopyKind&, c10::Device) {
  refuse();
}
void adamw_on_cuda(const AdamWPass::Batch&, const double*, c10::Device) {
  refuse();
}
void advance_control_on_cuda(double*, const double*, int64_t, const ControlRules&, c10::Device) {
  refuse();
}
void fill_keyed_on_cuda(const KeyedRun&, c10::Device) {
  refuse();
}
void measure_on_cuda(const Measurement&, double*, Watched*, const Look&) {
  refuse();
}
void repeat_on_cuda(void*, const void*, int64_t, int64_t, c10::Device) {
  refuse();
}
void causal_conv_forward_on_cuda(const CausalConv&, const at::Tensor&) {
  refuse();
}
void causal_conv_backward_on_cuda(
    const CausalConv&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  refuse();
}
void gated_norm_forward_on_cuda(const GatedNorm&, const at::Tensor&) {
  refuse();
}
void gated_norm_backward_on_cuda(
    const GatedNorm&, const at::Tensor&, const GatedNormGradients&, const at::Tensor&) {
  refuse();
}
void state_space_forward_on_cuda(
    const StateSpace&, const StateSpaceTimes&, const at::Tensor&, const at::Tensor&) {
  refuse();
}
void state_space_backward_on_cuda(
    const StateSpace&,
    const StateSpaceTimes&,
    const at::Tensor&,
    const at::Tensor&,
    const StateSpaceScratch&,
    const StateSpaceGradients&) {
  refuse();
}
void rms_norm_forward_on_cuda(const RmsNormForward&) {
  refuse();
}
void rms_norm_backward_on_cuda(const RmsNormBackward&) {
  refuse();
}
void rope_on_cuda(const RopeWork&) {
  refuse();
}
void swiglu_forward_on_cuda(const at::Tensor&, const at::Tensor&) {
  refuse();
}
void swiglu_backward_on_cuda(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  refuse();
}
void weighted_swiglu_forward_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  refuse();
}
void weighted_swiglu_backward_on_cuda(const WeightedSwigluBackward&) {
  refuse();
}
void sum_rows_on_cuda(const RowSums&) {
  refuse();
}
void cross_entropy_forward_on_cuda(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {
  refuse();
}
void cross_entropy_backward_on_cuda(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  refuse();
}
void encode_rows_on_cuda(const at::Tensor&, const Fp8Matrix&) {
  refuse();
}
void encode_columns_on_cuda(const at::Tensor&, const Fp8Matrix&) {
  refuse();
}
void encode_gradient_on_cuda(const at::Tensor&, const at::Tensor&, const Fp8Gradient&) {
  refuse();
}
void encode_input_again_on_cuda(const at::Tensor&, const Fp8Gradient&, const Fp8Matrix&) {
  refuse();
}
void decode_on_cuda(const Fp8Matrix&, const at::Tensor&) {
  refuse();
}
void measure_weights_on_cuda(std::span<const WeightPiece>, c10::ScalarType, const at::Tensor&) {
  refuse();
}
void encode_weights_on_cuda(
    std::span<const WeightPiece>, c10::ScalarType, const at::Tensor&, const at::Tensor&) {
  refuse();
}
void encode_weight_rows_on_cuda(
    std::span<const WeightRows>, c10::ScalarType, Scaling, c10::Device) {
  refuse();
}
void transpose_on_cuda(std::span<const Transposition>, int64_t, c10::Device) {
  refuse();
}
void encode_normed_on_cuda(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, double, const NormedFp8&) {
  refuse();
}
void encode_normed_again_on_cuda(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const Fp8Gradient&, const Fp8Matrix&) {
  refuse();
}
void encode_swiglu_on_cuda(const at::Tensor&, const Fp8Matrix&) {
  refuse();
}
void encode_swiglu_gradients_on_cuda(
    const at::Tensor&,
    const at::Tensor&,
    const Fp8Gradient&,
    const at::Tensor&,
    const SwigluGradients&) {
  refuse();
}
void scaled_product_on_cuda(const ScaledProduct&) {
  refuse();
}
void check_fp8_device(c10::Device, const std::string&) {}
void embedding_gradient_on_cuda(const EmbeddingGradient&, const at::Tensor&, const at::Tensor&) {
  refuse();
}

}  // namespace sherd
