// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/mamba_on_cuda.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/nn/mamba_device.h"

namespace sherd {
namespace {

Bf16* numbers(const at::Tensor& x) {
  return x.defined() ? static_cast<Bf16*>(x.mutable_data_ptr()) : nullptr;
}
DeviceRows rows_of(const at::Tensor& x) {
  return {numbers(x), x.stride(0), x.stride(1)};
}

/// Launches on the current stream of a tensor's device.
template <class Launch>
void on_stream_of(const at::Tensor& x, Launch launch) {
  const c10::cuda::CUDAGuard guard(x.device());
  launch(c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

DeviceConv device_conv(const CausalConv& conv) {
  return {
      rows_of(conv.x),
      conv.filter.const_data_ptr<float>(),
      conv.bias.const_data_ptr<float>(),
      static_cast<int>(conv.x.size(0)),
      static_cast<int>(conv.x.size(1)),
      static_cast<int>(conv.x.size(2))};
}

DeviceGatedNorm device_norm(const GatedNorm& norm) {
  return {
      numbers(norm.x),
      numbers(norm.gate),
      norm.weight.const_data_ptr<float>(),
      norm.x.size(0),
      norm.gate.stride(0),
      static_cast<int>(norm.x.size(1)),
      static_cast<int>(norm.groups),
      static_cast<float>(norm.epsilon)};
}

DeviceSpace device_space(const StateSpace& space, const StateSpaceTimes& times) {
  DeviceSpace result{};
  result.x = rows_of(space.x);
  result.write = rows_of(space.write);
  result.read = rows_of(space.read);
  result.raw_step = rows_of(space.step);
  result.step_bias = space.step_bias.const_data_ptr<float>();
  result.decay_log = space.decay_log.const_data_ptr<float>();
  result.through = space.through.const_data_ptr<float>();
  result.steps = times.steps.mutable_data_ptr<float>();
  result.decays = times.decays.mutable_data_ptr<float>();
  result.sequences = static_cast<int>(space.x.size(0));
  result.positions = static_cast<int>(space.x.size(1));
  result.heads = static_cast<int>(space.x.size(2));
  result.groups = static_cast<int>(space.write.size(2));
  result.state = static_cast<int>(space.write.size(3));
  result.chunks = static_cast<int>(space.chunks());
  return result;
}

}  // namespace

void causal_conv_forward_on_cuda(const CausalConv& conv, const at::Tensor& y) {
  on_stream_of(y, [&](auto stream) { launch_conv_forward(device_conv(conv), numbers(y), stream); });
}

void causal_conv_backward_on_cuda(
    const CausalConv& conv,
    const at::Tensor& y_gradient,
    const at::Tensor& x_gradient,
    const at::Tensor& sums) {
  on_stream_of(sums, [&](auto stream) {
    launch_conv_backward(
        device_conv(conv), numbers(y_gradient), rows_of(x_gradient), sums.mutable_data_ptr<float>(),
        stream);
  });
}

void gated_norm_forward_on_cuda(const GatedNorm& norm, const at::Tensor& y) {
  on_stream_of(
      y, [&](auto stream) { launch_gated_norm_forward(device_norm(norm), numbers(y), stream); });
}

void gated_norm_backward_on_cuda(
    const GatedNorm& norm,
    const at::Tensor& y_gradient,
    const GatedNormGradients& result,
    const at::Tensor& sums) {
  const DeviceGatedNormGradients of{
      numbers(y_gradient),
      numbers(result.x),
      numbers(result.gate),
      numbers(result.y),
      sums.mutable_data_ptr<float>(),
      result.gate.stride(0)};
  on_stream_of(
      sums, [&](auto stream) { launch_gated_norm_backward(device_norm(norm), of, stream); });
}

void state_space_forward_on_cuda(
    const StateSpace& space,
    const StateSpaceTimes& times,
    const at::Tensor& y,
    const at::Tensor& states) {
  const auto on_device = device_space(space, times);
  on_stream_of(y, [&](auto stream) {
    launch_space_steps(on_device, stream);
    launch_space_states(on_device, numbers(states), stream);
    launch_space_outputs(on_device, numbers(states), rows_of(y), stream);
  });
}

void state_space_backward_on_cuda(
    const StateSpace& space,
    const StateSpaceTimes& times,
    const at::Tensor& states,
    const at::Tensor& y_gradient,
    const StateSpaceScratch& scratch,
    const StateSpaceGradients& result) {
  const auto on_device = device_space(space, times);
  DeviceSpaceGradients of{};
  of.y = rows_of(y_gradient);
  of.x = rows_of(result.x);
  of.write = rows_of(result.write);
  of.read = rows_of(result.read);
  of.raw_step = rows_of(result.step);
  of.states = numbers(states);
  of.d_states = numbers(scratch.d_states);
  of.d_write = scratch.d_write.mutable_data_ptr<float>();
  of.d_read = scratch.d_read.mutable_data_ptr<float>();
  of.sums = scratch.sums.mutable_data_ptr<float>();
  on_stream_of(y_gradient, [&](auto stream) {
    launch_space_steps(on_device, stream);
    launch_space_state_gradients(on_device, of.y, numbers(scratch.d_states), stream);
    launch_space_key_gradients(on_device, of, stream);
    launch_space_gradients(on_device, of, stream);
  });
}

}  // namespace sherd
