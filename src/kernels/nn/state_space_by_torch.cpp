// SPDX-License-Identifier: Apache-2.0
// Shapes as in the header; R heads of a group, so H = G · R; K chunks that are computed together, L
// positions of each; D = R · P.
#include "kernels/nn/state_space_by_torch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/nn/pieces.h"
#include "kernels/widened.h"

// Note [Chunks of a state space]
// Within a chunk, y is a matrix product: position l reads what position s ≤ l wrote with the weight
// (read[l] · write[s]) · exp(sum of decays between them) · t[s], an L × L matrix for each head.
// Across chunks there is one state for each head, [P, N]: what a chunk leaves behind is another
// product, and the next chunk reads it with one more. Only the states are a recurrence. The
// backward computes the L × L matrices again, so states are all that is kept for it.

namespace sherd {
namespace {

/// Chunks of equal length that are computed together, and what follows from the steps in them.
class Chunks {
 public:
  Chunks(const StateSpace& space, int64_t first, int64_t count, int64_t length)
      : begin_(first * space.chunk), count_(count), length_(length) {
    heads_ = {space.write.size(2), space.x.size(2) / space.write.size(2)};
    x_BKGRLP = to_heads(space.x);
    write_BKGLN = to_groups(space.write);
    read_BKGLN = to_groups(space.read);
    raw_BKGRL = steps_of(space.step) + per_head(space.step_bias);
    step_BKGRL = at::softplus(raw_BKGRL);
    decay_GR1 = -per_head(space.decay_log).exp();
    sums_BKGRL = (step_BKGRL * decay_GR1).cumsum(-1);
    end_BKGR1 = sums_BKGRL.narrow(-1, length - 1, 1);
    to_end_BKGRL = (end_BKGR1 - sums_BKGRL).exp();
  }

  /// What a product adds up over the heads of a group: [.., R, L, P] as [.., L, D].
  static at::Tensor side_by_side(const at::Tensor& heads) {
    return heads.transpose(-3, -2).flatten(-2);
  }
  /// Its inverse.
  at::Tensor apart(const at::Tensor& rows) const {
    return rows.unflatten(-1, {heads_[1], -1}).transpose(-3, -2);
  }
  /// A number for each head, to be multiplied with [.., G, R, L].
  at::Tensor per_head(const at::Tensor& of_heads) const {
    return of_heads.view({heads_[0], heads_[1], 1});
  }

  /// exp of the decays after position s, up to position l; 0 for s > l.
  at::Tensor decays() const {
    const auto later = at::ones({length_, length_}, sums_BKGRL.options().dtype(at::kBool)).triu(1);
    return (sums_BKGRL.unsqueeze(-1) - sums_BKGRL.unsqueeze(-2))
        .masked_fill_(later, -std::numeric_limits<float>::infinity())
        .exp_();
  }
  at::Tensor scores() const {
    return at::matmul(read_BKGLN, write_BKGLN.transpose(-2, -1)).unsqueeze(3);
  }
  /// What the states before the chunks give to each position.
  at::Tensor from_states(const at::Tensor& states_BKGDN) const {
    return apart(at::matmul(read_BKGLN, states_BKGDN.transpose(-2, -1))) *
           sums_BKGRL.exp().unsqueeze(-1);
  }

  at::Tensor to_heads(const at::Tensor& x_BSHP) const {
    return mine(x_BSHP).unflatten(3, {heads_[0], heads_[1]}).permute({0, 1, 3, 4, 2, 5});
  }
  void put_heads(const at::Tensor& x_BSHP, const at::Tensor& values_BKGRLP) const {
    of(x_BSHP).copy_(values_BKGRLP.permute({0, 1, 4, 2, 3, 5}).flatten(3, 4));
  }
  void put_groups(const at::Tensor& x_BSGN, const at::Tensor& values_BKGLN) const {
    of(x_BSGN).copy_(values_BKGLN.transpose(2, 3));
  }
  void put_steps(const at::Tensor& x_BSH, const at::Tensor& values_BKGRL) const {
    of(x_BSH).copy_(values_BKGRL.permute({0, 1, 4, 2, 3}).flatten(3));
  }

  at::Tensor x_BKGRLP, write_BKGLN, read_BKGLN, raw_BKGRL, step_BKGRL, decay_GR1;
  at::Tensor sums_BKGRL;    ///< of the decays in the chunk, up to and with the position
  at::Tensor end_BKGR1;     ///< the last of them
  at::Tensor to_end_BKGRL;  ///< what is left of a position's writing after the chunk

 private:
  /// The positions of these chunks, [B, K, L, ..].
  at::Tensor of(const at::Tensor& x) const {
    return x.narrow(1, begin_, count_ * length_).unflatten(1, {count_, length_});
  }
  at::Tensor mine(const at::Tensor& x) const { return widened(of(x)); }
  at::Tensor to_groups(const at::Tensor& x_BSGN) const { return mine(x_BSGN).transpose(2, 3); }
  at::Tensor steps_of(const at::Tensor& x_BSH) const {
    return mine(x_BSH).unflatten(3, {heads_[0], heads_[1]}).permute({0, 1, 3, 4, 2});
  }

  int64_t begin_;
  int64_t count_;
  int64_t length_;
  std::array<int64_t, 2> heads_{};
};

/// Calls visit(first, count, length) for runs of chunks of equal length: as many at a time as fit.
template <class Visit>
void each_run(const StateSpace& space, bool forward, Visit visit) {
  const int64_t whole = space.x.size(1) / space.chunk, rest = space.x.size(1) % space.chunk;
  const int64_t scores = space.x.size(0) * space.x.size(2) * space.chunk * space.chunk;
  const int64_t most = pieces_at_once(space.x.device(), whole, scores);
  const int64_t runs = (whole + most - 1) / most;
  if (!forward && rest > 0) visit(whole, int64_t{1}, rest);
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t first = (forward ? run : runs - 1 - run) * most;
    visit(first, std::min(most, whole - first), space.chunk);
  }
  if (forward && rest > 0) visit(whole, int64_t{1}, rest);
}

/// The states of some chunks, [B, K, G, D, N].
at::Tensor states_of(const at::Tensor& states, int64_t first, int64_t count, int64_t groups) {
  return states.narrow(1, first, count).flatten(2, 3).unflatten(2, {groups, -1});
}

}  // namespace

void state_space_forward_by_torch(
    const StateSpace& space, const at::Tensor& y, const at::Tensor& states) {
  const int64_t groups = space.write.size(2), dims = space.x.size(3);
  auto state_BGDN = at::zeros(
      {y.size(0), groups, y.size(2) / groups * dims, space.write.size(3)}, space.through.options());
  each_run(space, /*forward=*/true, [&](int64_t first, int64_t count, int64_t length) {
    const Chunks in(space, first, count, length);
    const auto weights_BKGRLL = in.decays().mul_(in.scores()).mul_(in.step_BKGRL.unsqueeze(-2));
    auto y_BKGRLP = at::matmul(weights_BKGRLL, in.x_BKGRLP);
    const auto left_BKGDN = at::matmul(
        Chunks::side_by_side(in.x_BKGRLP * (in.step_BKGRL * in.to_end_BKGRL).unsqueeze(-1))
            .transpose(-2, -1),
        in.write_BKGLN);
    const auto kept_BKGD1 = in.end_BKGR1.exp().repeat_interleave(dims, 3);
    const auto before_BKGDN = states_of(states, first, count, groups);
    for (int64_t k = 0; k < count; ++k) {
      before_BKGDN.select(1, k).copy_(state_BGDN);
      state_BGDN.mul_(kept_BKGD1.select(1, k)).add_(left_BKGDN.select(1, k));
    }
    y_BKGRLP += in.from_states(widened(before_BKGDN));
    y_BKGRLP.addcmul_(in.x_BKGRLP, in.per_head(space.through).unsqueeze(-1));
    in.put_heads(y, y_BKGRLP);
  });
}

void state_space_backward_by_torch(
    const StateSpace& space,
    const at::Tensor& states,
    const at::Tensor& y_gradient,
    const StateSpaceGradients& result) {
  const int64_t groups = space.write.size(2), dims = space.x.size(3);
  for (const auto* sum : {&result.step_bias, &result.decay_log, &result.through}) sum->zero_();
  auto d_state_BGDN = at::zeros(
      {space.x.size(0), groups, space.x.size(2) / groups * dims, space.write.size(3)},
      space.through.options());
  each_run(space, /*forward=*/false, [&](int64_t first, int64_t count, int64_t length) {
    const Chunks in(space, first, count, length);
    const auto dy_BKGRLP = in.to_heads(y_gradient);
    const auto before_BKGDN = widened(states_of(states, first, count, groups));
    const auto over_sequences = [&](const at::Tensor& of_heads, const at::Tensor& sum) {
      sum.add_(of_heads.sum({0, 1, 4}).flatten());
    };
    over_sequences((dy_BKGRLP * in.x_BKGRLP).sum(-1), result.through);
    auto dx_BKGRLP = dy_BKGRLP * in.per_head(space.through).unsqueeze(-1);

    // What positions read of the states before their chunk.
    const auto faded_BKGLD = Chunks::side_by_side(dy_BKGRLP * in.sums_BKGRL.exp().unsqueeze(-1));
    auto d_read_BKGLN = at::matmul(faded_BKGLD, before_BKGDN);
    auto d_sums_BKGRL = (dy_BKGRLP * in.from_states(before_BKGDN)).sum(-1);
    const auto d_before_BKGDN = at::matmul(faded_BKGLD.transpose(-2, -1), in.read_BKGLN);

    // From chunk to chunk.
    const auto kept_BKGD1 = in.end_BKGR1.exp().repeat_interleave(dims, 3);
    const auto d_after_BKGDN = at::empty_like(d_before_BKGDN);
    for (int64_t k = count - 1; k >= 0; --k) {
      d_after_BKGDN.select(1, k).copy_(d_state_BGDN);
      d_state_BGDN.mul_(kept_BKGD1.select(1, k)).add_(d_before_BKGDN.select(1, k));
    }
    const auto d_end_BKGR = ((d_after_BKGDN * before_BKGDN).sum(-1, true) * kept_BKGD1)
                                .squeeze(-1)
                                .unflatten(-1, {-1, dims})
                                .sum(-1);

    // What positions leave behind.
    const auto left_BKGRL = in.step_BKGRL * in.to_end_BKGRL;
    const auto taken_BKGRLP = in.apart(at::matmul(in.write_BKGLN, d_after_BKGDN.transpose(-2, -1)));
    dx_BKGRLP.addcmul_(taken_BKGRLP, left_BKGRL.unsqueeze(-1));
    const auto d_left_BKGRL = (in.x_BKGRLP * taken_BKGRLP).sum(-1);
    auto d_write_BKGLN =
        at::matmul(Chunks::side_by_side(in.x_BKGRLP * left_BKGRL.unsqueeze(-1)), d_after_BKGDN);
    auto d_step_BKGRL = d_left_BKGRL * in.to_end_BKGRL;
    const auto fading_BKGRL = d_left_BKGRL * left_BKGRL;
    d_sums_BKGRL -= fading_BKGRL;

    // Within the chunk.
    const auto decays_BKGRLL = in.decays();
    const auto scores_BKG1LL = in.scores();
    const auto step_BKGR1L = in.step_BKGRL.unsqueeze(-2);
    auto d_weights_BKGRLL = at::matmul(dy_BKGRLP, in.x_BKGRLP.transpose(-2, -1));
    const auto weights_BKGRLL = (decays_BKGRLL * scores_BKG1LL).mul_(step_BKGR1L);
    dx_BKGRLP += at::matmul(weights_BKGRLL.transpose(-2, -1), dy_BKGRLP);
    d_weights_BKGRLL.mul_(decays_BKGRLL);
    const auto d_scores_BKGLL = (d_weights_BKGRLL * step_BKGR1L).sum(3);
    d_read_BKGLN += at::matmul(d_scores_BKGLL, in.write_BKGLN);
    d_write_BKGLN += at::matmul(d_scores_BKGLL.transpose(-2, -1), in.read_BKGLN);
    d_weights_BKGRLL.mul_(scores_BKG1LL);  // [l, s]: of the step at s, by way of l
    const auto of_writer_BKGRL = d_weights_BKGRLL.sum(-2);
    d_step_BKGRL += of_writer_BKGRL;
    d_sums_BKGRL += at::matmul(d_weights_BKGRLL, in.step_BKGRL.unsqueeze(-1)).squeeze(-1);
    d_sums_BKGRL.addcmul_(of_writer_BKGRL, in.step_BKGRL, -1);

    // A sum of decays has all steps up to its position.
    d_sums_BKGRL.select(-1, length - 1).add_(d_end_BKGR).add_(fading_BKGRL.sum(-1));
    const auto d_decays_BKGRL = d_sums_BKGRL.flip(-1).cumsum(-1).flip(-1);
    d_step_BKGRL.addcmul_(d_decays_BKGRL, in.decay_GR1);
    over_sequences(d_decays_BKGRL * in.step_BKGRL * in.decay_GR1, result.decay_log);
    d_step_BKGRL.mul_(at::sigmoid(in.raw_BKGRL));
    over_sequences(d_step_BKGRL, result.step_bias);

    in.put_heads(result.x, dx_BKGRLP);
    in.put_groups(result.write, d_write_BKGLN);
    in.put_groups(result.read, d_read_BKGLN);
    in.put_steps(result.step, d_step_BKGRL);
  });
}

}  // namespace sherd
