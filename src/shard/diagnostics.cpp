// SPDX-License-Identifier: Apache-2.0
#include "sherd/shard/diagnostics.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

#include "shard/runtime.h"

namespace sherd {

namespace {

constexpr size_t kTold = 4;  // findings of an error, by their names
/// Ranks that tell their findings: memory and time must not grow with the world.
constexpr size_t kTelling = 64;

}  // namespace

ModelBytes model_bytes(const torch::nn::Module& model) {
  return Runtime::of_model(model, "model_bytes")->bytes();
}

std::string symmetric_report(const torch::nn::Module& model) {
  return Runtime::of_model(model, "symmetric_report")->symmetric_report();
}

void Runtime::wait_until_idle(const char* caller) {
  check_resting(caller);
  if (recovering_) recover();
  finish();
}

void Runtime::check_between_steps(const char* caller) const {
  TORCH_CHECK(
      backwards_done_ == 0 || backwards_done_ == micro_batches_, "[shard] ", caller, " of '",
      root().name(), "' in the middle of a step: ", backwards_done_, " of ", micro_batches_,
      " backwards are done; call it between steps");
}

void Runtime::set_watch(const WatchOptions& options) {
  wait_until_idle("watch");
  check_between_steps("watch");
  TORCH_CHECK(
      addresses_pinned_by_.empty(), "[shard] watch of '", root().name(),
      "': ", addresses_pinned_by_, ", which watches as before; set it before the capture");
  TORCH_CHECK_VALUE(
      !options.before_reduction || program_->options().memory == MemoryKind::planned,
      "[shard] watch of '", root().name(),
      "' before the reduction needs gradients at one address: set memory = planned");
  TORCH_CHECK_VALUE(
      options.exploding == 0 || options.exploding > 1, "[shard] watch of '", root().name(),
      "': exploding is ", options.exploding, "; it must be above 1, or 0 for never");
  watch_.set_options(options);
  watch_.prepare(units_, micro_batches_);
}

std::vector<Finding> Runtime::findings() {
  finish();
  agreement_->check(/*block=*/true);
  agreement_->start({Agreement::Kind::report, step_, 0, 0}, [] {
    return "tells what it has found in its gradients";
  });
  agreement_->check(/*block=*/true);
  return Watch::merge(exchange_text(watch_.take(world_.rank()), kTelling));
}

void Runtime::report(const char* consequence) {
  report_due_ = false;
  std::vector<std::string> errors;
  std::vector<Finding> found;
  for (auto& one : findings()) {
    if (one.fault != Fault::exploding) {
      if (watch_.expects_overflow()) continue;
      errors.push_back(one.text());
      found.push_back(std::move(one));
    } else if (world_.rank() == 0) {
      TORCH_WARN("[shard.watch] ", one.text());
    }
  }
  if (errors.empty()) return;
  const size_t more = errors.size() - std::min(errors.size(), kTold);
  errors.resize(errors.size() - more);
  throw NotFiniteError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(
          "[shard.watch] ", c10::Join("; ", errors),
          more > 0 ? c10::str("; and ", more, " more") : "",
          watch_.options().before_reduction
              ? ""
              : " (sherd::watch(model, {.before_reduction = true}) names the rank, too)",
          consequence),
      std::move(found));
}

void watch(const torch::nn::Module& model, const WatchOptions& options) {
  Runtime::of_model(model, "watch")->set_watch(options);
}

std::vector<Finding> findings(const torch::nn::Module& model) {
  const auto runtime = Runtime::of_model(model, "findings");
  runtime->wait_until_idle("findings");
  runtime->check_between_steps("findings");
  return runtime->findings();
}

std::vector<ParameterNorms> norms(const torch::nn::Module& model) {
  const auto runtime = Runtime::of_model(model, "norms");
  runtime->wait_until_idle("norms");
  runtime->check_between_steps("norms");
  const c10::NoGradGuard no_grad;
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(runtime->world().device());
  std::vector<ParameterNorms> result;
  for (const auto* unit : runtime->units()) {
    for (const auto& group : unit->groups()) {
      const auto& traits = group->traits();
      if (!traits.trainable) continue;
      auto tensors = group->storage().main_pieces();
      const auto& gradients = group->storage().gradient_pieces();
      tensors.insert(tensors.end(), gradients.begin(), gradients.end());
      auto sums = at::empty({std::ssize(tensors)}, numbers);
      Measurement(tensors).run(sums);
      for (const auto& axis : traits.norm_axes()) {
        traits.mesh.communicator(axis).all_reduce(sums, Reduction::sum()).synchronize();
      }
      sums = sums.cpu().sqrt();
      const auto* values = sums.const_data_ptr<double>();
      for (size_t i = 0; i < group->size(); ++i) {
        result.push_back(
            {runtime->full_name(*unit, group->name(i)), values[i], values[group->size() + i]});
      }
    }
  }
  return result;
}

std::vector<GroupReport> groups(const torch::nn::Module& model) {
  const auto runtime = Runtime::of_model(model, "groups");
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
