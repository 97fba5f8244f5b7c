// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, S positions, D dim, E experts, F width inside an expert.
#include "models/moe/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "sherd/nn/functional.h"
#include "sherd/nn/recompute.h"

namespace sherd {
namespace {

constexpr const char* kExpertAxis = "ep";

std::optional<Exchange> ranks_of(const ExpertOptions& options) {
  if (!options.mesh) return std::nullopt;
  return Exchange(*options.mesh, kExpertAxis, "experts");
}

/// The number of experts that each rank has.
int64_t experts_of_a_rank(const ExpertOptions& options) {
  if (!options.mesh) return options.count;
  const int64_t ranks = options.mesh->size(kExpertAxis);
  TORCH_CHECK_VALUE(
      options.count % ranks == 0, "[models] ", options.count, " experts on ", ranks,
      " ranks along '", kExpertAxis, "': the ranks must divide the experts");
  return options.count / ranks;
}

}  // namespace

ExpertsImpl::ExpertsImpl(
    int64_t dim,
    const ExpertOptions& options,
    bool recomputes,
    bool ends_recompute,
    const SequenceRanks& sequence)
    : dim_(dim),
      options_(options),
      recomputes_(recomputes),
      ends_recompute_(ends_recompute),
      ranks_(ranks_of(options)),
      sequence_(sequence) {
  const auto [count, ffn] = std::pair(experts_of_a_rank(options), options.ffn);
  router = register_parameter("router", at::empty({options.count, dim}));
  gate_up = register_parameter("gate_up", at::empty({count, 2 * ffn, dim}));
  down = register_parameter("down", at::empty({count, dim, ffn}));
  if (options.shared_ffn > 0) {
    shared = register_module(
        "shared",
        FeedForward(
            dim, options.shared_ffn, recomputes, /*ends_recompute=*/false, sequence.tensor));
  }
}

RoutingOptions ExpertsImpl::routing() const {
  RoutingOptions result(options_.top_k, options_.norm_top_k);
  result.sequence_ranks = sequence_.all();
  return result;
}

std::vector<at::Tensor> ExpertsImpl::forward(const at::Tensor& x_BSD) {
  auto [result_BSD, balance] = experts(x_BSD, expert_parameters(), routing(), recomputes_);
  if (shared) result_BSD = result_BSD + shared(x_BSD);
  return {result_BSD, balance * options_.balance};
}

std::vector<at::Tensor> ExpertsImpl::forward_residual(
    const at::Tensor& x_BSD, const at::Tensor& residual_BSD, const RmsNorm& norm) {
  FeedForwardOptions options{.recompute_gate_up = recomputes_, .adds_sum = true};
  if (recomputing() && c10::GradMode::is_enabled()) {  // its graph is for one backward
    options.overwrites = true;
    options.skips_result = ends_recompute_;
  }
  NormOptions normed{norm->weight, norm->epsilon};
  auto [sum_BSD, result_BSD, balance] =
      norm_experts(x_BSD, residual_BSD, normed, expert_parameters(), routing(), options);
  if (shared) {
    options.adds_sum = false;
    normed.ranks = sequence_.tensor;
    const auto shared_BSD = std::get<1>(norm_feed_forward(
        sum_BSD, {}, normed, shared->gate_up->weight, shared->down->weight, options));
    result_BSD = result_BSD + shared_BSD;
  }
  return {result_BSD, balance * options_.balance};
}

double ExpertsImpl::flops_per_token() const {
  const double chosen = static_cast<double>(options_.top_k) * 3 * product_flops(dim_, options_.ffn);
  return chosen + product_flops(dim_, options_.count) + (shared ? shared->flops_per_token() : 0);
}

double ExpertsImpl::recomputed_flops_per_token() const {
  const double chosen = static_cast<double>(options_.top_k) * product_flops(dim_, 2 * options_.ffn);
  return chosen + (shared ? shared->recomputed_flops_per_token() : 0);
}

std::vector<ParameterRule> expert_rules(const ExpertOptions& options, int64_t dim) {
  std::vector<ParameterRule> rules;
  if (!options.mesh) return rules;
  const auto& mesh = *options.mesh;
  const bool outer = mesh.has("dp_outer");
  const auto lines = outer ? mesh.sub({"dp_outer", "edp"}) : mesh.sub({"edp"});
  const int64_t here = experts_of_a_rank(options), first = here * mesh.coordinate(kExpertAxis);
  const auto add = [&](const char* match, int64_t rows, int64_t columns) {
    rules.push_back(
        {.match = match,
         .mesh = lines,
         .axes = DataAxes{.inner = "edp", .outer = outer ? "dp_outer" : ""},
         .cut = Cut{{options.count, rows, columns}, 0, {{first, first + here}}}});
  };
  add("*.gate_up", 2 * options.ffn, dim);
  add("*.down", dim, options.ffn);
  return rules;
}

}  // namespace sherd
