// SPDX-License-Identifier: Apache-2.0
#include "buffer/runs.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace sherd {
namespace {

struct Run {
  int64_t offset = 0;
  int64_t length = 0;
};

/// Each segment of a part's buffer holds that part's neighbouring shards, so a finer part is one
/// range of it.
Run run_of(const Layout& layout, const Segment& segment, Part held, Part wanted) {
  TORCH_INTERNAL_ASSERT(
      wanted.count % held.count == 0 && wanted.index / (wanted.count / held.count) == held.index,
      "part ", wanted.index, " of ", wanted.count, " is not in part ", held.index, " of ",
      held.count);
  const int64_t whole = segment.shard_size * layout.shards();
  const int64_t length = whole / wanted.count;
  const int64_t within = wanted.index % (wanted.count / held.count);
  return {segment.offset / held.count + within * length, length};
}

}  // namespace

std::vector<at::Tensor> runs(const Layout& layout, const PartBuffer& buffer, Part wanted) {
  std::vector<at::Tensor> result;
  for (const auto& segment : layout.segments()) {
    const auto run = run_of(layout, segment, buffer.part, wanted);
    result.push_back(buffer.storage.narrow(0, run.offset, run.length));
  }
  return result;
}

std::vector<Transfer> pair_runs(
    const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs) {
  std::vector<Transfer> result;
  for (size_t i = 0; i < outputs.size(); ++i) result.push_back({outputs[i], inputs[i]});
  return result;
}

at::Tensor held_run(
    const Layout& layout, const PartBuffer& buffer, Part wanted, int64_t parameter) {
  const auto piece = layout.held_by(wanted, parameter);
  for (const auto& segment : layout.segments()) {
    const auto& members = segment.parameters;
    if (std::find(members.begin(), members.end(), parameter) == members.end()) continue;
    const auto run = run_of(layout, segment, buffer.part, wanted);
    const int64_t within = piece.length == 0 ? 0 : piece.offset - segment.offset / wanted.count;
    return buffer.storage.narrow(0, run.offset + within, piece.length);
  }
  return buffer.storage.narrow(0, 0, 0);  // without elements it lies in no segment
}

}  // namespace sherd
