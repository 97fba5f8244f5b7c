// SPDX-License-Identifier: Apache-2.0
#include "shard/diagnostics/findings.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shard/runtime/runtime_parts.h"

namespace sherd {

namespace {

/// Findings that an error names.
constexpr size_t kNamed = 4;
/// Ranks whose findings are collected: memory and time must not grow with the world.
constexpr size_t kMostRanks = 64;

}  // namespace

std::vector<Finding> collect_findings(RuntimeParts& parts) {
  parts.program.streams().finish();
  auto& records = parts.agreement.records();
  records.check(/*block=*/true);
  records.start(RankRecords::Record::of_report(parts.state.step()), [] {
    return "tells what it has found in its gradients";
  });
  records.check(/*block=*/true);
  return Watch::merge(records.collect(parts.watch.take(parts.world.rank()), kMostRanks));
}

void report_findings(RuntimeParts& parts, const char* consequence) {
  parts.agreement.set_reported();
  std::vector<std::string> errors;
  std::vector<Finding> found;
  for (auto& one : collect_findings(parts)) {
    if (one.fault != Fault::exploding) {
      if (parts.watch.expects_overflow()) continue;
      errors.push_back(one.text());
      found.push_back(std::move(one));
    } else if (parts.world.rank() == 0) {
      TORCH_WARN("[shard.watch] ", one.text());
    }
  }
  if (errors.empty()) return;
  const size_t more = errors.size() - std::min(errors.size(), kNamed);
  errors.resize(errors.size() - more);
  throw NotFiniteError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(
          "[shard.watch] ", c10::Join("; ", errors),
          more > 0 ? c10::str("; and ", more, " more") : "",
          parts.watch.options().before_reduction
              ? ""
              : " (sherd::watch(model, {.before_reduction = true}) names the rank, too)",
          consequence),
      std::move(found));
}

}  // namespace sherd
