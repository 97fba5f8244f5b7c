// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/sequence_ranks.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <string>

#include "sherd/nn/functional.h"

namespace sherd {
namespace {

void check_mesh(const Mesh& mesh) {
  constexpr std::array kAxes{"dp_outer", "dp", "cp", "tp"};
  std::string names;
  size_t next = 0;
  bool ordered = true;
  for (const auto& axis : mesh.axes()) {
    names += (names.empty() ? "" : ", ") + axis.name;
    const auto found = std::find(kAxes.begin() + next, kAxes.end(), axis.name);
    ordered = ordered && found != kAxes.end();
    if (ordered) next = static_cast<size_t>(found - kAxes.begin()) + 1;
  }
  TORCH_CHECK_VALUE(
      ordered && mesh.has("dp"), "[models] a mesh of the axes ", names,
      ": LlamaOptions::mesh has dp and may have dp_outer, cp and tp, in the order dp_outer, dp, "
      "cp, tp");
  TORCH_CHECK_VALUE(
      mesh.size() == mesh.world().size(), "[models] a mesh of ", mesh.size(), " of the world's ",
      mesh.world().size(), " ranks: LlamaOptions::mesh has all of them");
}

std::optional<Exchange> exchange_along(
    const Mesh& mesh, const char* axis, const std::string& purpose) {
  if (!mesh.has(axis) || mesh.size(axis) == 1) return std::nullopt;
  return Exchange(mesh, axis, purpose);
}

}  // namespace

SequenceRanks::SequenceRanks(const std::optional<Mesh>& mesh) {
  if (!mesh) return;
  check_mesh(*mesh);
  tensor = exchange_along(*mesh, "tp", "tensor parallelism");
  context = exchange_along(*mesh, "cp", "context parallelism");
}

std::vector<Exchange> SequenceRanks::all() const {
  std::vector<Exchange> result;
  for (const auto& each : {context, tensor}) {
    if (each) result.push_back(*each);
  }
  return result;
}

Batch SequenceRanks::part_of(const Batch& whole) const {
  const int64_t multiple = (cp() > 1 ? 2 * cp() : 1) * tp(), length = whole.tokens.size(1);
  TORCH_CHECK_VALUE(
      length % multiple == 0, "[models] sequences of ", length, " tokens on ", cp(),
      " ranks along 'cp' and ", tp(), " along 'tp': the length must be a multiple of ", multiple,
      cp() > 1 ? " (2 · cp · tp)" : "", "; pad or cut the sequences");
  const auto part = [&](const at::Tensor& x_BS) {
    if (!x_BS.defined()) return x_BS;
    const auto chunks = context ? context_part(x_BS, 1, *context) : x_BS;
    const int64_t rows = chunks.size(1) / tp();
    return tensor ? chunks.narrow(1, tensor->rank() * rows, rows).contiguous() : chunks;
  };
  auto result = whole;
  result.tokens = part(whole.tokens);
  result.targets = part(whole.targets);
  return result;
}

}  // namespace sherd
