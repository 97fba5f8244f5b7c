// SPDX-License-Identifier: Apache-2.0
// Operations of transformers, for the forwards of modules. Each is one autograd node, which keeps
// few bytes for its backward and writes the gradients of weights straight into the unit's buffer,
// as linear() does. They work without sharding, too. The models of this library use the fused ones
// (norm_linear, norm_feed_forward, attention); rms_norm, add_rms_norm, swiglu, feed_forward and
// rope_ are for models of your own that are put together in another way.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "sherd/export.h"
#include "sherd/nn/exchange.h"

namespace sherd {

// ---- embedding and loss -------------------------------------------------------------------------

/// Returns weight[tokens]: a row of weight [V, D] for each token (int64, any shape). In a unit's
/// backward the weight's gradient is written straight into the unit's buffer, summed in fp32 in
/// the same order every time. A token that is negative, or V or above, throws on CPU and is a
/// device-side assertion on a GPU. Second derivatives throw, and so do shapes and dtypes that don't
/// fit.
///
/// For the backward it keeps the tokens, 8 bytes each.
SHERD_API at::Tensor embedding(const at::Tensor& weight, const at::Tensor& tokens);

/// The treatment of the logits between forward and backward.
enum class HeadLogits : uint8_t {
  /// Recomputes them in the backward, chunk by chunk: one more product with the weight. Keeps x,
  /// the targets and 4 bytes a token.
  recompute,
  /// Computes them all in the forward, replaces them by their gradients, and keeps these in x's
  /// dtype: with bf16, 2·V bytes a token (2.1 GB for 8192 tokens and a vocabulary of 128256).
  keep,
};

/// Options of linear_cross_entropy.
struct HeadOptions {
  HeadLogits logits = HeadLogits::recompute;
  /// HeadLogits::recompute: number of rows whose logits are computed at a time, in x's dtype. Each
  /// chunk of the backward reads and writes the whole weight gradient once, so large chunks save
  /// traffic.
  int64_t chunk_rows = 2048;
};

/// Returns the sum over rows of the cross entropy of the logits x · weightᵀ, in fp32. x is [T, D],
/// weight [V, D], targets [T] in int64; rows with a negative target are ignored; a
/// target of V or above throws on CPU and is a device-side assertion on a GPU. Loss and gradients
/// of logits are computed in fp32 (fp64 for fp64 input). The weight's gradient is written as by
/// linear(), with the same bits every time. Never blocks for the device. Second derivatives throw,
/// and so do shapes and dtypes that don't fit.
SHERD_API at::Tensor linear_cross_entropy(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const HeadOptions& options = {});

// ---- RMSNorm ------------------------------------------------------------------------------------

// RMSNorm over the last dim, computed in fp32 (fp64 for fp64 input) and rounded once. The weight's
// gradient is written as by linear(), added up in the same order every time. Second derivatives
// throw, and so do shapes and dtypes that don't fit.

/// Returns x / √(mean(x²) + epsilon) · weight, with weight [D].
///
/// For the backward it keeps x, the weight and 4 bytes a row: with bf16, 2·D + 4 bytes a token. x
/// is often kept by other operations anyway.
SHERD_API at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

/// Returns {sum, y}: sum = x + residual in the wider of their dtypes, and y = rms_norm(sum), in one
/// kernel. The backward is one kernel too, and adds the sum's other gradients.
///
/// For the backward it keeps the sum (neither x nor residual), the weight and 4 bytes a row: with
/// bf16, 2·D + 4 bytes a token.
SHERD_API std::tuple<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double epsilon);

/// The RMSNorm before a product.
struct NormOptions {
  at::Tensor weight;      ///< [D]
  double epsilon = 1e-5;  ///< added to the mean square
  /// Tensor parallelism: ranks that have an equal number of rows each, along dim −2, and each its
  /// part of the weights. The normed rows of all are gathered before the product; norm_experts has
  /// no use for it. Default: this rank's rows and weights are all.
  std::optional<Exchange> ranks{};
};

/// Returns {sum, product}: sum = x + residual (x, if the residual is undefined) and product =
/// rms_norm(sum) · weightᵀ, with weight [F, D]. Use the sum as the next operation's residual; its
/// other gradients are added in the same backward. The weights' gradients are written as by
/// linear(). Second derivatives throw, and so do shapes and dtypes that don't fit.
///
/// For the backward it keeps the sum alone, with bf16 2·D bytes a token, and recomputes the norm.
///
/// With NormOptions::ranks, x and the sum are this rank's rows and the product has those of all
/// ranks. They are gathered again in the backward, not kept; for a weight in fp8, at first in fp8.
SHERD_API std::tuple<at::Tensor, at::Tensor> norm_linear(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& weight);

// ---- feed-forward -------------------------------------------------------------------------------

/// Returns silu(gate) · up, with gate and up packed in the last dim, gate first: [.., 2F] to
/// [.., F]. Computed in fp32, rounded once. Second derivatives throw, and so do shapes and dtypes
/// that don't fit.
///
/// For the backward it keeps gate_up: with bf16, 4·F bytes a token. If a product follows, use
/// feed_forward(): it keeps gate_up too, but not the activation.
SHERD_API at::Tensor swiglu(const at::Tensor& gate_up);

/// Returns a SwiGLU feed-forward: (silu(gate) · up) · downᵀ, where gate and up are the halves of
/// x · gate_upᵀ. x is [.., D], gate_up [2F, D] (the gate's rows first), down [D, F]. The weights'
/// gradients are written as by linear(). Second derivatives throw, and so do shapes and dtypes that
/// don't fit.
///
/// For the backward it keeps x and the product x · gate_upᵀ: with bf16, 2·D + 4·F bytes a token.
/// The activation is always recomputed. With `recompute_gate_up` it keeps x alone, 2·D bytes a
/// token, and recomputes that product too.
SHERD_API at::Tensor feed_forward(
    const at::Tensor& x,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    bool recompute_gate_up = false);

/// Options of norm_feed_forward and norm_experts.
struct FeedForwardOptions {
  /// Recomputes the product with gate_up in the backward instead of keeping it.
  bool recompute_gate_up = false;
  /// Lets the backward overwrite the product with gate_up by its gradient, which saves memory. Only
  /// for graphs that run backward once.
  bool overwrites = false;
  /// Leaves the result without values and skips the product with down, for a recompute whose result
  /// is not used: only its backward runs.
  bool skips_result = false;
  /// Returns sum + result in place of the result: the residual connection around the feed-forward.
  /// With fp8 weights the product with down adds it.
  bool adds_sum = false;
};

/// Returns {sum, result}: the same sum as norm_linear() and result = feed_forward(rms_norm(sum)).
/// Gradients and errors are as for norm_linear().
///
/// For the backward it keeps the sum and the product with gate_up, with bf16 2·D + 4·F bytes a
/// token; with `recompute_gate_up` the sum alone.
///
/// With NormOptions::ranks, each rank has an equal part of the width F: those rows of gate and of
/// up, and those columns of down. x, the sum and the result are this rank's rows; what the ranks'
/// parts give for them is added. Rows are gathered again in the backward, not kept. For weights in
/// fp8 the forward gathers them in fp8.
SHERD_API std::tuple<at::Tensor, at::Tensor> norm_feed_forward(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const at::Tensor& gate_up_weight,
    const at::Tensor& down_weight,
    const FeedForwardOptions& options = {});

// ---- experts (mixture of experts) ---------------------------------------------------------------

/// The parameters of E experts of width F, and of their router.
struct ExpertParameters {
  at::Tensor router;   ///< [E, D]
  at::Tensor gate_up;  ///< [E, 2F, D], the gate's rows first
  at::Tensor down;     ///< [E, D, F]
  /// The ranks that share the experts (expert parallelism): rank r of n has the experts from
  /// r · E / n on, so gate_up and down are [E / n, ..]. Default: this rank has all.
  std::optional<Exchange> ranks{};
};

/// How a router chooses the experts of a token and weighs them. A number alone is a `top_k`.
struct RoutingOptions {
  RoutingOptions(int64_t experts_of_a_token, bool norms_their_weights = true)
      : top_k(experts_of_a_token), norm_top_k(norms_their_weights) {}
  int64_t top_k;  ///< number of experts of a token
  /// The weights of a token's experts are their chances over the sum of these; else their chances.
  bool norm_top_k;
  /// Ranks that have other tokens of the same sequences, as many each: the balance is that of whole
  /// sequences, and each rank's is the part of its tokens.
  std::vector<Exchange> sequence_ranks{};
};

/// The result of norm_experts().
struct ExpertsResult {
  at::Tensor sum;      ///< x + residual
  at::Tensor result;   ///< of the experts, in the sum's dtype
  at::Tensor balance;  ///< the load-balancing loss, summed over all tokens; fp32
};

/// Returns a mixture of experts on y = rms_norm(x + residual), [.., S, D]. A softmax over the
/// logits y · routerᵀ, in fp32, gives each token its chances with the experts; its `top_k` best
/// ones, with weights in proportion to their chances and a sum of 1 (without `norm_top_k`: with
/// their chances as weights), give
///   result = Σ weight · (silu(gate) · up) · downᵀ, gate and up being the halves of y · gate_upᵀ.
/// No token is dropped, however many choose one expert. The balance is computed within each
/// sequence of S tokens, as the sum over experts of E times their share of the sequence's rows,
/// times the sum of their chances; it is 1 a token where all experts have equally many.
///
/// Gradients and errors are as for norm_linear(); those of experts without tokens are 0. All sums
/// are taken in the same order every time. Each expert's product is a part of one grouped product.
/// On a GPU that never blocks for the device in bf16 on Hopper and Blackwell, where D and F are
/// multiples of 8; other dtypes and GPUs wait in it, and weight gradients are rounded to the
/// products' dtype before they are added to the unit's buffer.
///
/// For the backward it keeps the sum, the products with gate_up, and the routing: with bf16,
/// 2·D + top_k · (4·F + 16) + 4·E bytes a token; with `recompute_gate_up` 2·D + top_k · 16 + 4·E.
/// The norm, the sorted rows and the activation are always recomputed.
///
/// With `ranks`, every rank routes its own tokens; their rows, of D elements and a weight, go to
/// the ranks of their experts and back in all-to-alls, and so do the gradients. All ranks must call
/// it and its backward, with any number of tokens of their own; the host waits in it for the
/// numbers of rows. What a rank keeps then depends on the routing: for each row that arrives, with
/// bf16, 4·F + 2·D + 12 bytes in place of 4·F; with `recompute_gate_up` 12, and the rows are sent
/// again.
SHERD_API ExpertsResult norm_experts(
    const at::Tensor& x,
    const at::Tensor& residual,
    const NormOptions& norm,
    const ExpertParameters& parameters,
    const RoutingOptions& routing,
    const FeedForwardOptions& options = {});

/// Returns {result, balance}: the same with y = x. It keeps x in place of the sum.
SHERD_API std::tuple<at::Tensor, at::Tensor> experts(
    const at::Tensor& x,
    const ExpertParameters& parameters,
    const RoutingOptions& routing,
    bool recompute_gate_up = false);

// ---- attention ----------------------------------------------------------------------------------

/// The shape of grouped-query attention.
struct AttentionShape {
  int64_t heads = 1;     ///< number of query heads
  int64_t kv_heads = 1;  ///< number of key heads, and of value heads; divides `heads`
  int64_t head_dim = 8;  ///< width of a head
  bool causal = true;    ///< positions see only themselves and earlier ones
};

/// The tables of rotary position embeddings: cosine and sine of the angles, [positions,
/// head_dim / 2], fp32, contiguous. Undefined tensors: no rotary embeddings.
struct RotaryTables {
  at::Tensor cosine;
  at::Tensor sine;
};

/// Returns scaled dot-product attention over packed queries, keys and values:
/// [B, S, (heads + 2 · kv_heads) · head_dim] to [B, S, heads · head_dim]. May apply the rotary
/// embeddings to `packed` in place, so nothing else may use it. Throws for shapes that don't fit.
///
/// In bf16 or fp16 on a GPU, with a head_dim that is a multiple of 8 and at most 128, it runs in
/// cuDNN and keeps for the backward `packed`, the output and one fp32 number per head and position.
/// Otherwise it is torch's scaled_dot_product_attention, which keeps more.
SHERD_API at::Tensor attention(
    const at::Tensor& packed, const AttentionShape& shape, const RotaryTables& rotary = {});

/// The keys and values that cached_attention() reads and extends.
struct CachedHeads {
  at::Tensor keys;    ///< [B, kv_heads, capacity, head_dim], with rotary embeddings
  at::Tensor values;  ///< as the keys
  int64_t count = 0;  ///< positions that they have
};

/// Returns causal attention of new positions to the cached ones and to themselves, and writes their
/// keys and values to the cache, behind the others: [B, S, (heads + 2 · kv_heads) · head_dim] to
/// [B, S, heads · head_dim]. `rotary` begins with the first new position. Applies the rotary
/// embeddings to `packed` in place. Has no backward: throws under GradMode, and for shapes that
/// don't fit.
SHERD_API at::Tensor cached_attention(
    const at::Tensor& packed,
    const AttentionShape& shape,
    const RotaryTables& rotary,
    const CachedHeads& cache);

// Note [Chunks of a sequence]
// With context parallelism n ranks share each sequence. If each had one piece of it, causal
// attention would give the last rank almost twice the mean work. So the sequence is cut into 2n
// equal chunks, of which rank r has the chunks r and 2n − 1 − r, one after the other: the work of
// both together is the same on all ranks.

/// Returns the entries of x along `dim`, which are the positions of whole sequences, that this rank
/// has. Throws unless 2n divides that dim.
SHERD_API at::Tensor context_part(const at::Tensor& x, int64_t dim, const Exchange& ranks);

/// Returns attention() for this rank's part of the positions (context_part()), which see those of
/// all ranks before them. Keys and values are gathered in one exchange, again in the backward; the
/// rotary tables are those of this rank's positions. The chunks' results are joined by the
/// logarithms of their sums, so nothing of the size S × S is written. For the backward it keeps
/// what attention() keeps in cuDNN. Throws unless it is causal and, on a GPU, for dtypes and heads
/// that don't run in cuDNN.
SHERD_API at::Tensor context_attention(
    const at::Tensor& packed,
    const AttentionShape& shape,
    const RotaryTables& rotary,
    const Exchange& ranks);

/// The heads and angles of rotary position embeddings, for queries, keys and values packed in this
/// order in [B, S, (heads + 2 · kv_heads) · head_dim]. At each position, dims i and i + head_dim/2
/// of a head are rotated by the angle whose cosine and sine are at [position, i].
struct Rope {
  int64_t heads = 1;     ///< number of query heads
  int64_t kv_heads = 1;  ///< number of key heads, and of value heads
  at::Tensor cosine;     ///< [at least S, head_dim/2], fp32, contiguous
  at::Tensor sine;       ///< as the cosine
};

// Both work in place, compute in fp32 and round once. For the backward they keep the tables alone:
// 0 bytes a token. Second derivatives throw, and so do shapes and dtypes that don't fit.

/// Rotates queries and keys in place and returns `packed`, which may be a strided view with a
/// contiguous last dim. The backward rotates the gradient back, in place if nothing else refers to
/// it, else in a copy.
SHERD_API at::Tensor rope_(const at::Tensor& packed, const Rope& rope);

/// Rotates queries and keys in place and returns {queries, keys, values} as views of the same
/// memory: [B, S, heads, head_dim], and [B, S, kv_heads, head_dim] twice. Do not use `packed`
/// afterwards: a backward that needs its values throws. The backward writes the three gradients
/// straight into one packed tensor, one kernel each, without joining slices first.
SHERD_API std::array<at::Tensor, 3> rope_split_(const at::Tensor& packed, const Rope& rope);

// ---- Mamba-2 ------------------------------------------------------------------------------------

/// The sizes of a Mamba-2 mixer, with the inner width I = heads · head_dim and C = I + 2 · groups ·
/// state channels in its convolution.
struct MambaShape {
  int64_t heads = 1;           ///< number of heads
  int64_t head_dim = 64;       ///< width of a head
  int64_t groups = 1;          ///< groups of heads that share write and read; divides `heads`
  int64_t state = 64;          ///< size of the state for each dim of a head
  int64_t width = 4;           ///< positions that the convolution covers, at most 8
  int64_t norm_groups = 1;     ///< equal parts of the inner width, each normed on its own
  int64_t chunk = 128;         ///< positions computed as one matrix; does not change the result
  double norm_epsilon = 1e-5;  ///< added to the mean square

  int64_t inner() const { return heads * head_dim; }
  int64_t channels() const { return inner() + 2 * groups * state; }
};

/// The parameters of a Mamba-2 mixer, but for the projection before it.
struct MambaParameters {
  at::Tensor filter;       ///< C · width elements: [C, width]
  at::Tensor filter_bias;  ///< [C]
  at::Tensor step_bias;    ///< [heads]
  at::Tensor decay_log;    ///< [heads]
  at::Tensor through;      ///< [heads]
  at::Tensor norm_weight;  ///< [I]
  at::Tensor output;       ///< [D, I]
};

/// Returns a Mamba-2 (selective state space) mixer, [B, S, D], from the packed result of the
/// projection before it: [B, S, gate (I), channels (C), steps (heads)]. The channels go through a
/// causal convolution and a SiLU and then hold x (I), write and read (groups · state each). For
/// each head, from state = 0 on,
///   t = softplus(step + step_bias),  state = exp(−t · exp(decay_log)) · state + t · x ⊗ write,
///   y = state · read + through · x,
/// and the result is rms_norm(y · silu(gate)) · outputᵀ. Math in fp32 (fp64 for fp64 input), stored
/// in the dtype of `packed`. The parameters' gradients are written as by linear(), summed in the
/// same order every time. Second derivatives throw, and so do shapes and dtypes that don't fit.
///
/// For the backward it keeps `packed`, what the convolution returns (unless `recompute_conv`: with
/// bf16, 2·C bytes a token), y (2·I bytes a token), and the state before each chunk (2·I·state
/// bytes a chunk): nothing of the size chunk × chunk. The norm is recomputed.
SHERD_API at::Tensor mamba_mixer(
    const at::Tensor& packed,
    const MambaParameters& parameters,
    const MambaShape& shape,
    bool recompute_conv = false);

/// The ranks that share sequences with a rank: along `context` they have context_part() of each,
/// along `tensor` equal parts of these, one after the other. Absent: one rank.
struct MambaRanks {
  std::optional<Exchange> context{};
  std::optional<Exchange> tensor{};
};

/// Returns mamba_mixer() for this rank's part of the positions, [B, s, D] from [B, s, ..]. Between
/// the projections each rank computes all positions for an equal part of the heads, which are
/// exchanged along each axis before and after. Parameters are whole on every rank. Throws unless
/// the ranks divide the heads, and the groups or the ranks divide the others.
///
/// For the backward it keeps what mamba_mixer() keeps, but of the channels and steps those of all
/// positions for its heads.
SHERD_API at::Tensor shared_mamba_mixer(
    const at::Tensor& packed,
    const MambaParameters& parameters,
    const MambaShape& shape,
    const MambaRanks& ranks,
    bool recompute_conv = false);

}  // namespace sherd
