// SPDX-License-Identifier: Apache-2.0
#include "shard/group/fp8_views.h"

#include <ATen/ops/zeros.h>

#include "shard/outside_inference.h"

namespace sherd {

void Fp8Views::show(
    std::vector<at::Tensor> full, bool backward, std::vector<at::Tensor> transposed) {
  full_ = std::move(full);
  transposed_ = std::move(transposed);
  backward_ = backward;
}

void Fp8Views::hide() {
  full_.clear();
  transposed_.clear();
}

Fp8Matrix Fp8Views::matrix(
    const std::vector<at::Tensor>& buffers, size_t first, size_t member, bool transposed) const {
  const auto& flat = layout_.flat();
  const auto number = static_cast<int64_t>(member);
  const auto& shape = flat.parameters()[member].shape;
  const int64_t rows = shape[transposed ? 1 : 0], columns = shape[transposed ? 0 : 1];
  Fp8Matrix result;
  result.values =
      buffers[first].narrow(0, flat.offset(number), flat.numel(number)).view({rows, columns});
  const int64_t block = layout_.spec().encoding.block;
  const auto scales = [&](int64_t down, int64_t across) {
    return buffers[first + 1]
        .narrow(0, flat.offset(number) / block, flat.numel(number) / block)
        .view({rows / down, columns / across});
  };
  switch (layout_.traits().fp8) {
    case Fp8::none: break;
    case Fp8::rows:
    case Fp8::rows_wgrad16:
      result.scaling = Scaling::tensor;
      result.scales = scales_.narrow(0, number, 1);
      break;
    case Fp8::blocks:
      result.scaling = Scaling::block;
      result.scales = scales(kFp8Tile, kFp8Tile);
      break;
    case Fp8::mx:
      result.scaling = first == 0 ? Scaling::mx_row : Scaling::mx_column;
      result.scales = first == 0 ? scales(1, kMxBlock) : scales(kMxBlock, 1);
      break;
  }
  return result;
}

Fp8Weight Fp8Views::weight(size_t member) const {
  Fp8Weight result{
      layout_.traits().fp8, layout_.traits().compute, matrix(full_, 0, member, false), {}};
  if (!backward_) return result;
  result.backward = layout_.traits().fp8 == Fp8::mx ? matrix(full_, 2, member, false)
                                                    : matrix(transposed_, 0, member, true);
  return result;
}

at::Tensor Fp8Views::decode_all(const std::vector<at::Tensor>& full) const {
  const OutsideInference normal;
  const auto dtype = layout_.traits().compute;
  auto result = at::zeros({layout_.flat().full_size()}, full[0].options().dtype(dtype));
  for (size_t member = 0; member < layout_.size(); ++member) {
    const auto number = static_cast<int64_t>(member);
    result.narrow(0, layout_.flat().offset(number), layout_.flat().numel(number))
        .copy_(decode(matrix(full, 0, member, false), dtype).flatten());
  }
  return result;
}

}  // namespace sherd
