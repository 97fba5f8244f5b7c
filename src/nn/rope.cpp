// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, H heads of queries, K heads of keys and as many of values, N
// all of them, d dim of a head.
#include "sherd/nn/functional.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cast_copy.h"
#include "kernels/nn/rope.h"
#include "nn/weight_gradient.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [B, S, N, d] of the same memory.
at::Tensor apart(const at::Tensor& packed, int64_t head_dim) {
  return packed.unflatten(-1, {packed.size(-1) / head_dim, head_dim});
}

void turn_in_place(
    const at::Tensor& heads_BSNd, const at::Tensor& cosine, const at::Tensor& sine, bool back) {
  rope({heads_BSNd, heads_BSNd, cosine, sine, back});
}

/// Whether this handle is the last one of memory that is all its own.
bool is_ours(const at::Tensor& x) {
  return x.use_count() == 1 && x.storage().use_count() == 1 && x.is_contiguous();
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& packed,
      const at::Tensor& cosine,
      const at::Tensor& sine,
      int64_t turned) {
    const int64_t head_dim = 2 * cosine.size(1);
    turn_in_place(apart(packed, head_dim).narrow(2, 0, turned), cosine, sine, /*back=*/false);
    context->set_materialize_grads(false);
    context->save_for_backward({cosine, sine});
    context->saved_data["turned"] = turned;
    context->mark_dirty({packed});
    return packed;
  }

  // Takes the list by reference: a copy of it would be a second handle of the gradient.
  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    refuse_second_derivative("rope_");
    if (!gradients[0].defined()) return {{}, {}, {}, {}};
    auto gradient = std::move(gradients[0]);
    if (!is_ours(gradient)) gradient = gradient.clone(at::MemoryFormat::Contiguous);
    const auto saved = context->get_saved_variables();
    const int64_t turned = context->saved_data["turned"].toInt();
    const auto heads_BSNd = apart(gradient, 2 * saved[0].size(1));
    turn_in_place(heads_BSNd.narrow(2, 0, turned), saved[0], saved[1], /*back=*/true);
    return {gradient, {}, {}, {}};
  }
};

struct RopeSplitFunction : torch::autograd::Function<RopeSplitFunction> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& packed,
      const at::Tensor& cosine,
      const at::Tensor& sine,
      int64_t heads,
      int64_t kv_heads) {
    // A handle of the same memory that autograd doesn't take for a view of the input: the input's
    // own history ends here.
    const auto heads_BSNd = apart(packed.variable_data(), 2 * cosine.size(1));
    turn_in_place(heads_BSNd.narrow(2, 0, heads + kv_heads), cosine, sine, /*back=*/false);
    packed.unsafeGetTensorImpl()->bump_version();
    context->set_materialize_grads(false);
    context->save_for_backward({cosine, sine});
    context->saved_data["shape"] = packed.sizes().vec();
    context->saved_data["heads"] = std::vector<int64_t>{heads, kv_heads, kv_heads};
    return heads_BSNd.split_with_sizes({heads, kv_heads, kv_heads}, 2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("rope_split_");
    const auto saved = context->get_saved_variables();
    const auto& cosine = saved[0];
    const auto heads = context->saved_data["heads"].toIntVector();
    at::Tensor packed;
    for (const auto& gradient : gradients) {
      if (gradient.defined() && !packed.defined()) {
        packed = at::empty(context->saved_data["shape"].toIntVector(), gradient.options());
      }
    }
    if (!packed.defined()) return {{}, {}, {}, {}, {}};
    const auto places = apart(packed, 2 * cosine.size(1)).split_with_sizes(heads, 2);
    for (size_t i = 0; i < places.size(); ++i) {
      if (!gradients[i].defined()) {
        places[i].zero_();
      } else if (i == 2) {
        places[i].copy_(gradients[i]);
      } else {
        const bool dense = gradients[i].stride(-1) == 1;
        const auto source = dense ? gradients[i] : gradients[i].contiguous();
        rope({source, places[i], cosine, saved[1], /*back=*/true});
      }
    }
    return {packed, {}, {}, {}, {}};
  }
};

void check(const at::Tensor& packed, const Rope& rope) {
  const bool tables = rope.cosine.dim() == 2 && rope.cosine.sizes() == rope.sine.sizes() &&
                      rope.cosine.scalar_type() == at::kFloat &&
                      rope.sine.scalar_type() == at::kFloat && rope.cosine.is_contiguous() &&
                      rope.sine.is_contiguous();
  TORCH_CHECK_VALUE(
      tables, "[nn] rope with tables of ", rope.cosine.sizes(), " ", rope.cosine.scalar_type(),
      " and ", rope.sine.sizes(), " ", rope.sine.scalar_type(),
      ": they are [positions, head_dim / 2], dense, fp32");
  const int64_t width = (rope.heads + 2 * rope.kv_heads) * 2 * rope.cosine.size(1);
  TORCH_CHECK_VALUE(
      packed.dim() == 3 && packed.size(2) == width && packed.size(1) <= rope.cosine.size(0) &&
          (packed.stride(2) == 1 || packed.numel() == 0) &&
          is_float16_or_wider(packed.scalar_type()),
      "[nn] rope of ", packed.sizes(), " ", packed.scalar_type(), " with ", rope.heads, " + 2 · ",
      rope.kv_heads, " heads and tables of ", rope.cosine.sizes(),
      ": packed is [B, S, (heads + 2 · kv_heads) · head_dim] with a dense last dim, S at most the "
      "positions");
}

}  // namespace

at::Tensor rope_(const at::Tensor& packed, const Rope& rope) {
  check(packed, rope);
  return RopeFunction::apply(packed, rope.cosine, rope.sine, rope.heads + rope.kv_heads);
}

std::array<at::Tensor, 3> rope_split_(const at::Tensor& packed, const Rope& rope) {
  check(packed, rope);
  auto parts = RopeSplitFunction::apply(packed, rope.cosine, rope.sine, rope.heads, rope.kv_heads);
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

}  // namespace sherd
