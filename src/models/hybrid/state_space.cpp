// SPDX-License-Identifier: Apache-2.0
// Shapes as in the header, and C chunks of L positions.
#include "models/hybrid/state_space.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/ones.h>

#include <limits>

namespace sherd {
namespace {

/// exp of the sums between two places: [..., i, j] of x[j + 1] + … + x[i], 0 above the diagonal.
at::Tensor decay_between(const at::Tensor& sums) {
  const int64_t n = sums.size(-1);
  const auto later =
      at::ones({n, n}, sums.options().dtype(at::kBool)).triu(1);  // j > i: not yet written
  return (sums.unsqueeze(-1) - sums.unsqueeze(-2))
      .masked_fill(later, -std::numeric_limits<float>::infinity())
      .exp();
}

/// Filled up to whole chunks; a step of 0 writes nothing and lets nothing fade.
at::Tensor in_chunks(const at::Tensor& x, int64_t chunk) {
  const int64_t missing = (chunk - x.size(1) % chunk) % chunk;
  std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - 1)), 0);
  pad.back() = missing;
  return at::constant_pad_nd(x, pad).unflatten(1, {-1, chunk});
}

}  // namespace

at::Tensor state_space(const StateSpaceInputs& inputs, int64_t chunk) {
  const int64_t positions = inputs.x_BSHP.size(1);
  const int64_t heads_of_group = inputs.x_BSHP.size(2) / inputs.write_BSGN.size(2);
  const auto step_BCLH = in_chunks(inputs.step_BSH, chunk);
  const auto x_BCLHP = in_chunks(inputs.x_BSHP, chunk) * step_BCLH.unsqueeze(-1);
  const auto write_BCLHN = in_chunks(inputs.write_BSGN, chunk).repeat_interleave(heads_of_group, 3);
  const auto read_BCLHN = in_chunks(inputs.read_BSGN, chunk).repeat_interleave(heads_of_group, 3);

  // Within a chunk: what position s wrote, as position l reads it.
  const auto faded_BHCL = (step_BCLH * inputs.decay_H).permute({0, 3, 1, 2}).cumsum(-1);
  const auto seen_BHCLS =
      at::einsum("bclhn,bcshn->bhcls", {read_BCLHN, write_BCLHN}) * decay_between(faded_BHCL);
  auto y_BCLHP = at::einsum("bhcls,bcshp->bclhp", {seen_BHCLS, x_BCLHP});

  // Between chunks: what each leaves behind, and what the next finds.
  const auto end_BHC1 = faded_BHCL.narrow(-1, chunk - 1, 1);
  const auto kept_BHCL = (end_BHC1 - faded_BHCL).exp();
  const auto left_BCHPN = at::einsum("bclhn,bhcl,bclhp->bchpn", {write_BCLHN, kept_BHCL, x_BCLHP});
  const auto ends_BHC = end_BHC1.squeeze(-1).cumsum(-1);
  const int64_t chunks = ends_BHC.size(-1);
  if (chunks > 1) {
    const auto between_BHCZ = decay_between(ends_BHC.narrow(-1, 0, chunks - 1));
    const auto found_BCHPN =
        at::einsum("bhcz,bzhpn->bchpn", {between_BHCZ, left_BCHPN.narrow(1, 0, chunks - 1)});
    const auto late_BCLHP = at::einsum(
        "bclhn,bchpn,bhcl->bclhp", {read_BCLHN.narrow(1, 1, chunks - 1), found_BCHPN,
                                    faded_BHCL.narrow(2, 1, chunks - 1).exp()});
    y_BCLHP = y_BCLHP + at::constant_pad_nd(late_BCLHP, {0, 0, 0, 0, 0, 0, 1, 0});
  }
  return y_BCLHP.flatten(1, 2).narrow(1, 0, positions);
}

}  // namespace sherd
