// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, n ranks, L positions of a chunk, S = 2n · L positions, H heads, K heads of
// keys and values, d dim of a head, W = 2K · d.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/meta_target.h"
#include "nn/packed_heads.h"
#include "nn/weight_gradient.h"
#include "sherd/nn/functional.h"

namespace sherd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Note [Attention over chunks]
// A chunk of queries sees two sets of keys: all chunks before it, and itself causally. Each is one
// call of a kernel that also returns, for each query, the logarithm of the sum of its weights. With
// both logarithms a and b the joined one is log(eᵃ + eᵇ), and the joined result is the mean of the
// two results, weighted by eᵃ and eᵇ. The backward of each call, given the joined result and
// logarithm in place of its own, returns its part of the gradients.

/// What a kernel computes, and its numbers for the backward.
struct AttentionResult {
  at::Tensor out_BHSd;
  at::Tensor sums_BHS;  ///< logarithms, fp32 (fp64 for fp64 input)
  at::Tensor seed;      ///< of cuDNN
  at::Tensor offset;    ///< of cuDNN
};

at::Tensor empty_sums(const at::Tensor& query_BHSd) {
  const auto dtype = query_BHSd.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty(query_BHSd.sizes().slice(0, 3), query_BHSd.options().dtype(dtype));
}

/// One call of a kernel.
struct AttentionCall {
  PackedHeads heads;
  bool causal = false;

  AttentionResult forward() const {
    const auto& [query, key, value] = heads;
    if (query.is_meta()) {
      return {
          empty_heads(query.transpose(1, 2), query.size(1), query.size(3)),
          empty_sums(query),
          {},
          {}};
    }
    if (query.is_cuda()) {
      const auto results = at::_scaled_dot_product_cudnn_attention(
          query, key, value, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true,
          /*dropout_p=*/0, causal);
      return {
          std::get<0>(results), std::get<1>(results).squeeze(-1), std::get<6>(results),
          std::get<7>(results)};
    }
    auto [out, sums] =
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0, causal);
    return {std::move(out), std::move(sums), {}, {}};
  }

  /// Returns the gradients of queries, keys and values.
  PackedHeads backward(const at::Tensor& gradient_BHSd, const AttentionResult& joined) const {
    const auto& [query, key, value] = heads;
    const auto sums = joined.sums_BHS.contiguous();
    if (query.is_meta()) {
      const auto like = [](const at::Tensor& x) {
        return empty_heads(x.transpose(1, 2), x.size(1), x.size(3));
      };
      return {like(query), like(key), like(value)};
    }
    std::tuple<at::Tensor, at::Tensor, at::Tensor> all;
    if (query.is_cuda()) {
      all = at::_scaled_dot_product_cudnn_attention_backward(
          gradient_BHSd, query, key, value, joined.out_BHSd, sums.unsqueeze(-1), joined.seed,
          joined.offset, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, query.size(2),
          key.size(2), /*dropout_p=*/0, causal);
    } else {
      all = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          gradient_BHSd, query, key, value, joined.out_BHSd, sums, /*dropout_p=*/0, causal);
    }
    return {std::get<0>(all), std::get<1>(all), std::get<2>(all)};
  }
};

/// The two chunks of this rank among those of all.
class ContextChunks {
 public:
  ContextChunks(Exchange ranks, const at::Tensor& packed, const AttentionShape& shape)
      : ranks_(std::move(ranks)), shape_(shape), length_(packed.size(1) / 2) {}

  int64_t length() const { return length_; }
  /// Returns the number of positions before a half of this rank's positions.
  int64_t before(int64_t half) const {
    const int64_t n = ranks_.size(), rank = ranks_.rank();
    return length_ * (half == 0 ? rank : 2 * n - 1 - rank);
  }
  /// Returns both chunks as sequences of their own, [2B, L, ..].
  at::Tensor apart(const at::Tensor& x) const { return x.unflatten(1, {2, length_}).flatten(0, 1); }
  /// Returns a half of [B, 2L, ..].
  at::Tensor half_of(const at::Tensor& x, int64_t half) const {
    return x.narrow(1, half * length_, length_);
  }
  /// Returns keys and values of all positions in order, [B, S, W], from this rank's.
  at::Tensor gathered(const at::Tensor& packed) const {
    const int64_t n = ranks_.size(), first = shape_.heads * shape_.head_dim;
    const auto mine = packed.narrow(-1, first, packed.size(-1) - first);
    const auto by_rank = ranks_.gather_rows(mine, 0).unflatten(0, {n, -1});  // [n, B, 2L, W]
    const auto ordered = at::empty({mine.size(0), 2 * n, length_, mine.size(-1)}, mine.options());
    for (int64_t rank = 0; rank < n; ++rank) {
      ordered.select(1, rank).copy_(half_of(by_rank.select(0, rank), 0));
      ordered.select(1, 2 * n - 1 - rank).copy_(half_of(by_rank.select(0, rank), 1));
    }
    return ordered.flatten(1, 2);
  }
  /// Returns this rank's part, [B, 2L, W], of the sum over the ranks of [B, S, W].
  at::Tensor scattered(const at::Tensor& whole) const {
    const int64_t n = ranks_.size(), B = whole.size(0);
    const auto ordered = whole.unflatten(1, {2 * n, length_});
    const auto by_rank = at::empty({n, B, 2 * length_, whole.size(-1)}, whole.options());
    for (int64_t rank = 0; rank < n; ++rank) {
      half_of(by_rank.select(0, rank), 0).copy_(ordered.select(1, rank));
      half_of(by_rank.select(0, rank), 1).copy_(ordered.select(1, 2 * n - 1 - rank));
    }
    return ranks_.scatter_sum(by_rank.flatten(0, 1), 0);
  }
  /// Returns both chunks, each seen by itself.
  AttentionCall own(const at::Tensor& packed) const {
    return {heads_of(apart(packed), shape_), /*causal=*/true};
  }
  /// Returns a half, and the keys and values before it.
  AttentionCall earlier(const at::Tensor& packed, const at::Tensor& whole, int64_t half) const {
    auto heads = heads_of(half_of(packed, half), shape_);
    const auto seen = whole.narrow(1, 0, before(half)).unflatten(-1, {2, shape_.kv_heads, -1});
    heads.key_BKSd = seen.select(2, 0).transpose(1, 2);
    heads.value_BKSd = seen.select(2, 1).transpose(1, 2);
    return {std::move(heads), /*causal=*/false};
  }

 private:
  Exchange ranks_;
  AttentionShape shape_;
  int64_t length_;
};

/// Joins to `result` another one for the same queries, in place.
void join(const AttentionResult& result, const AttentionResult& other) {
  const auto sums = at::logaddexp(result.sums_BHS, other.sums_BHS);
  const auto weight_BHS1 = (other.sums_BHS - sums).exp_().unsqueeze(-1);
  auto difference = other.out_BHSd.to(sums.scalar_type());
  difference = difference.sub_(result.out_BHSd).mul_(weight_BHS1).add_(result.out_BHSd);
  result.out_BHSd.copy_(difference);
  result.sums_BHS.copy_(sums);
}

/// What a function keeps besides tensors.
struct KeptRanks : torch::CustomClassHolder {
  KeptRanks(Exchange exchange, const AttentionShape& sizes)
      : ranks(std::move(exchange)), shape(sizes) {}
  Exchange ranks;
  AttentionShape shape;
};

struct ContextAttentionFunction : torch::autograd::Function<ContextAttentionFunction> {
  /// Views, for a half, of what is kept of both chunks: out [B, 2L, H, d], sums [2B, H, L].
  static AttentionResult half_result(
      const ContextChunks& chunks, const AttentionResult& both, int64_t half) {
    return {
        chunks.half_of(both.out_BHSd, half).transpose(1, 2),
        both.sums_BHS.unflatten(0, {-1, 2}).select(1, half), both.seed, both.offset};
  }

  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& given,
      const AttentionShape& shape,
      const RotaryTables& rotary,
      const Exchange& ranks) {
    const auto packed = given.contiguous();
    rotate(packed, shape, rotary, /*back=*/false);
    const ContextChunks chunks(ranks, packed, shape);
    const auto whole = chunks.gathered(packed);
    auto both = chunks.own(packed).forward();
    both.out_BHSd = both.out_BHSd.transpose(1, 2).contiguous().view(
        {packed.size(0), packed.size(1), shape.heads, shape.head_dim});
    both.sums_BHS = both.sums_BHS.contiguous();
    for (int64_t half = 0; half < 2; ++half) {
      if (chunks.before(half) == 0) continue;
      join(half_result(chunks, both, half), chunks.earlier(packed, whole, half).forward());
    }
    context->save_for_backward(
        {packed, both.out_BHSd, both.sums_BHS, both.seed, both.offset, rotary.cosine, rotary.sine});
    context->saved_data["ranks"] =
        c10::IValue::make_capsule(c10::make_intrusive<KeptRanks>(ranks, shape));
    return both.out_BHSd.flatten(2);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("context_attention");
    const auto saved = context->get_saved_variables();
    const auto kept =
        c10::static_intrusive_pointer_cast<KeptRanks>(context->saved_data["ranks"].toCapsule());
    const auto& shape = kept->shape;
    const auto& packed = saved[0];
    const AttentionResult both{saved[1], saved[2], saved[3], saved[4]};
    const ContextChunks chunks(kept->ranks, packed, shape);
    const auto gradient_BSHd = gradients[0].contiguous().view(both.out_BHSd.sizes());
    const auto d_packed = at::empty_like(packed);
    {
      const AttentionResult apart{
          chunks.apart(both.out_BHSd).transpose(1, 2), both.sums_BHS, both.seed, both.offset};
      const auto of =
          chunks.own(packed).backward(chunks.apart(gradient_BSHd).transpose(1, 2), apart);
      const auto into = heads_of(chunks.apart(d_packed), shape);
      into.query_BHSd.copy_(of.query_BHSd);
      into.key_BKSd.copy_(of.key_BKSd);
      into.value_BKSd.copy_(of.value_BKSd);
    }
    const auto d_whole = earlier_gradients(chunks, packed, gradient_BSHd, both, d_packed, shape);
    const int64_t first = shape.heads * shape.head_dim;
    d_packed.narrow(-1, first, d_whole.size(-1)).add_(chunks.scattered(d_whole));
    rotate(d_packed, shape, {saved[5], saved[6]}, /*back=*/true);
    return {d_packed, at::Tensor(), at::Tensor(), at::Tensor()};
  }

  /// Adds the queries' gradients to `d_packed` and returns those of all keys and values.
  static at::Tensor earlier_gradients(
      const ContextChunks& chunks,
      const at::Tensor& packed,
      const at::Tensor& gradient_BSHd,
      const AttentionResult& both,
      const at::Tensor& d_packed,
      const AttentionShape& shape) {
    const auto whole = chunks.gathered(packed);
    const auto d_whole = at::empty_like(whole);
    // The second half sees more, so it writes first; what no chunk of this rank sees is 0.
    const int64_t seen = chunks.before(1);
    d_whole.narrow(1, seen, whole.size(1) - seen).zero_();
    for (const int64_t half : {int64_t{1}, int64_t{0}}) {
      const int64_t before = chunks.before(half);
      if (before == 0) continue;
      const auto of = chunks.earlier(packed, whole, half)
                          .backward(
                              chunks.half_of(gradient_BSHd, half).transpose(1, 2),
                              half_result(chunks, both, half));
      heads_of(chunks.half_of(d_packed, half), shape).query_BHSd.add_(of.query_BHSd);
      const auto into = d_whole.narrow(1, 0, before).unflatten(-1, {2, shape.kv_heads, -1});
      const auto write = [&](int64_t part, const at::Tensor& gradient_BKSd) {
        const auto place = into.select(2, part);
        half == 1 ? place.copy_(gradient_BKSd.transpose(1, 2))
                  : place.add_(gradient_BKSd.transpose(1, 2));
      };
      write(0, of.key_BKSd);
      write(1, of.value_BKSd);
    }
    return d_whole;
  }
};

void check_context(const at::Tensor& packed, const AttentionShape& shape, const Exchange& ranks) {
  TORCH_CHECK_VALUE(
      shape.causal, "[nn] context_attention over ", ranks.size(),
      " ranks without a causal mask: only causal attention is supported; keep whole sequences on "
      "a rank");
  TORCH_CHECK_VALUE(
      packed.size(1) % 2 == 0, "[nn] context_attention of ", packed.sizes(),
      ": a rank has two chunks of equal length; use sequences whose length is a multiple of ",
      2 * ranks.size());
  TORCH_CHECK_VALUE(
      !needs_device_tables(packed.device()) || runs_by_cudnn(packed, shape),
      "[nn] context_attention of ", packed.scalar_type(), " with heads of ", shape.head_dim,
      " dims on a GPU: it needs bf16 or fp16 and a head_dim that is a multiple of 8 and at most "
      "128; use other dtypes, or one rank along '",
      ranks.axis(), "'");
}

}  // namespace

at::Tensor context_part(const at::Tensor& x, int64_t dim, const Exchange& ranks) {
  const int64_t n = ranks.size(), rank = ranks.rank(), length = x.size(dim) / (2 * n);
  if (n == 1) return x;
  TORCH_CHECK_VALUE(
      x.size(dim) % (2 * n) == 0, "[nn] context_part of ", x.sizes(), " along dim ", dim, " over ",
      n, " ranks: the size must be a multiple of ", 2 * n, ", two chunks for each rank");
  const auto chunk = [&](int64_t number) { return x.narrow(dim, number * length, length); };
  return at::cat({chunk(rank), chunk(2 * n - 1 - rank)}, dim);
}

at::Tensor context_attention(
    const at::Tensor& packed,
    const AttentionShape& shape,
    const RotaryTables& rotary,
    const Exchange& ranks) {
  if (ranks.size() == 1) return attention(packed, shape, rotary);
  check_attention(packed, shape, rotary);
  check_context(packed, shape, ranks);
  return ContextAttentionFunction::apply(packed, shape, rotary, ranks);
}

}  // namespace sherd
