// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/runs_table.h"

namespace sherd {

/// The settings of AdamW for some elements. A new one that elements may differ in belongs here and
/// in AdamWStep (adamw_math.h); one for the whole step in ControlRules; one that may change between
/// replays of a graph, like the learning rate, in control::Field.
struct AdamWSettings {
  double lr_factor = 1;  ///< times the learning rate
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  double missed = 0;  ///< updates that these elements were left out of
};

/// Elements that are updated alike. All are flat and of one length; `model` is undefined where the
/// model computes with the main weight itself.
struct AdamWTensors {
  at::Tensor weight;
  at::Tensor gradient;
  at::Tensor first;  ///< moments
  at::Tensor second;
  at::Tensor model;
  AdamWSettings settings;
};

/// What changes from step to step: numbers in fp64 that stay on the device, so that neither a step
/// nor a captured graph needs the host.
namespace control {
enum Field : int64_t {
  lr,           ///< written by the caller
  step,         ///< updates made so far
  coefficient,  ///< what gradients are multiplied with: clipping, tokens, the loss's scale
  skip,         ///< not 0: the gradients are not finite, and nothing is updated
  norm,         ///< of the gradients, before clipping
  tokens,       ///< of all ranks; gradients are divided by them
  scale,        ///< of the loss
  healthy,      ///< updates since the scale was changed
  own_tokens,   ///< this rank's; written by the host
  count,
};
}  // namespace control

/// How a step's control follows from the gradients' norm.
struct ControlRules {
  double max_norm = 0;  ///< 0: no clipping
  bool scaled = false;  ///< the loss has a scale that adapts
  double growth = 2;
  double backoff = 0.5;
  double interval = 2000;
};

/// From the sums of squares of all gradients to norm, coefficient, skip, step and scale.
/// `sums` and `fields` are fp64, on one device.
void advance_control(const at::Tensor& fields, const at::Tensor& sums, const ControlRules& rules);

/// One pass over weights, gradients and moments: clips, updates, decays, and writes the model
/// weight. Prepared once for tensors that stay where they are; tensors of one set of dtypes are one
/// launch. Runs on the current stream.
class AdamWPass {
 public:
  AdamWPass() = default;
  /// Weights, gradients and model weights of fp32, bf16 or fp16; moments of fp32 or bf16.
  explicit AdamWPass(const std::vector<AdamWTensors>& tensors);
  void run(const at::Tensor& fields) const;
  /// Of its tables.
  int64_t bytes() const;

  struct Run {
    void* weight = nullptr;
    const void* gradient = nullptr;
    void* first = nullptr;
    void* second = nullptr;
    void* model = nullptr;
    int64_t count = 0;
    AdamWSettings settings;
  };
  struct Dtypes {
    c10::ScalarType weight{};
    c10::ScalarType gradient{};
    c10::ScalarType state{};
    c10::ScalarType model{};
    friend bool operator==(const Dtypes&, const Dtypes&) = default;
  };
  struct Batch {
    Dtypes dtypes;
    std::vector<Run> runs;
    int64_t chunks = 0;  // CUDA
    at::Tensor device_runs;
    at::Tensor device_chunks;
  };

 private:
  std::vector<AdamWTensors> tensors_;  // alive as long as their addresses are in use
  std::vector<Batch> batches_;
  c10::Device device_{c10::kCPU};
};

// In CUDA memory.
void adamw_on_cuda(const AdamWPass::Batch& batch, const double* fields, c10::Device device);
void advance_control_on_cuda(
    double* fields,
    const double* sums,
    int64_t count,
    const ControlRules& rules,
    c10::Device device);

}  // namespace sherd
