// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/diagnostics.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "shard/diagnostics/findings.h"
#include "shard/runtime/runtime.h"

namespace sherd {

ModelBytes allocated_bytes(ModuleRef model) {
  return Runtime::of_model(*model, "allocated_bytes")->bytes();
}

std::string symmetric_report(ModuleRef model) {
  return Runtime::of_model(*model, "symmetric_report")->parts().program.symmetric_report();
}

void watch(ModuleRef model, const WatchOptions& options) {
  const auto runtime = Runtime::of_model(*model, "watch");
  runtime->wait_until_idle("watch");
  runtime->check_between_steps("watch");
  auto& parts = runtime->parts();
  const auto& name = runtime->root().name();
  TORCH_CHECK(
      parts.graph.addresses_pinned_by.empty(), "[shard] watch of '", name,
      "': ", parts.graph.addresses_pinned_by,
      ", which watches as before; set it before the capture");
  TORCH_CHECK_VALUE(
      !options.before_reduction || runtime->program().options().memory == MemoryKind::planned,
      "[shard] watch of '", name,
      "' before the reduction needs gradients at one address: set memory = planned");
  TORCH_CHECK_VALUE(
      options.exploding == 0 || options.exploding > 1, "[shard] watch of '", name,
      "': exploding is ", options.exploding, "; it must be above 1, or 0 for never");
  parts.watch.set_options(options);
  parts.watch.prepare(parts.units.all(), parts.state.micro_batches());
}

std::vector<Finding> findings(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "findings");
  runtime->wait_until_idle("findings");
  runtime->check_between_steps("findings");
  return collect_findings(runtime->parts());
}

std::vector<ParameterNorms> norms(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "norms");
  runtime->wait_until_idle("norms");
  runtime->check_between_steps("norms");
  const c10::NoGradGuard no_grad;
  const auto shards = trainable_only(runtime->shards());
  std::vector<at::Tensor> counted;
  for (const auto& shard : shards) {
    if (shard.counted) counted.insert(counted.end(), {shard.main, shard.gradient});
  }
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(runtime->world().device());
  const auto mine = at::zeros({std::ssize(counted)}, numbers);
  Measurement(counted).run(mine);
  auto sums = at::zeros({std::ssize(shards), 2}, numbers);
  int64_t row = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].counted) continue;
    sums.select(0, static_cast<int64_t>(i)).copy_(mine.narrow(0, row, 2));
    row += 2;
  }
  runtime->world().communicator().all_reduce(sums, Reduction::sum()).synchronize();
  sums = sums.cpu().sqrt();
  const auto* values = sums.const_data_ptr<double>();
  std::vector<ParameterNorms> result;
  for (size_t i = 0; i < shards.size(); ++i) {
    result.push_back({shards[i].name, values[2 * i], values[2 * i + 1]});
  }
  return result;
}

std::vector<GroupReport> groups(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "groups");
  std::vector<GroupReport> result;
  for (const auto* unit : runtime->units()) {
    for (const auto& group : unit->groups()) {
      auto report = group->report();
      report.unit = unit->name();
      result.push_back(std::move(report));
    }
  }
  return result;
}

std::string to_text(const std::vector<GroupReport>& groups) {
  std::vector<std::vector<std::string>> rows{
      {"unit", "group", "parameters", "elements", "padding", "model", "main", "gradient",
       "gathered", "padding bytes"}};
  GroupReport sum;
  sum.unit = "all";
  const auto add_row = [&](const GroupReport& one) {
    std::vector<std::string> row{one.unit, one.group};
    for (const int64_t number :
         {one.parameters, one.elements, one.padding, one.model_bytes, one.main_bytes,
          one.gradient_bytes, one.gathered_bytes, one.padding_bytes}) {
      row.push_back(std::to_string(number));
    }
    rows.push_back(std::move(row));
  };
  for (const auto& one : groups) {
    add_row(one);
    sum.parameters += one.parameters;
    sum.elements += one.elements;
    sum.padding += one.padding;
    sum.model_bytes += one.model_bytes;
    sum.main_bytes += one.main_bytes;
    sum.gradient_bytes += one.gradient_bytes;
    sum.gathered_bytes += one.gathered_bytes;
    sum.padding_bytes += one.padding_bytes;
  }
  add_row(sum);
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::ostringstream out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      out << (i < 2 ? std::left : std::right) << std::setw(static_cast<int>(widths[i])) << row[i]
          << (last ? "\n" : "  ");
    }
  }
  return out.str();
}

}  // namespace sherd
