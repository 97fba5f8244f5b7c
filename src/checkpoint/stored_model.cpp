// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stored_model.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <map>
#include <set>

#include "checkpoint/fp8_export.h"
#include "checkpoint/slices.h"
#include "shard/replace_data.h"

namespace sherd {
namespace {

constexpr int64_t kLargestFile = int64_t{5} << 30;

std::map<std::string, const AdamW::Moments*> moments_of(const AdamW* optimizer) {
  std::map<std::string, const AdamW::Moments*> result;
  if (!optimizer) return result;
  for (const auto& moments : optimizer->moments()) result[moments.name] = &moments;
  return result;
}

StoredParameter stored_parameter(const ParameterShard& shard, const SlicesOf& slices_of) {
  StoredParameter one;
  one.name = shard.name;
  one.slices = checked_slices(slices_of, shard.name, shard.whole_shape());
  one.cut = shard.cut;
  // Its own version counter: loaded values are no optimizer's update.
  one.pieces[Set::main] = shard.main.variable_data();
  one.begin = shard.begin;
  // Each replica writes its share of the elements that they all have.
  const int64_t count = shard.main.numel();
  one.write_begin = one.begin + count * shard.replica / shard.replicas;
  one.write_end = one.begin + count * (shard.replica + 1) / shard.replicas;
  return one;
}

void add_buffers(
    const torch::nn::Module& model,
    const World& world,
    const SlicesOf& slices_of,
    Purpose purpose,
    std::vector<StoredParameter>& result) {
  std::set<const c10::TensorImpl*> seen;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  for (const auto& item : model.named_buffers()) buffers.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_parameters()) {
    if (is_ignored(item.value())) buffers.emplace_back(item.key(), item.value());
  }
  for (const auto& [name, buffer] : buffers) {
    // The module may be registered twice: the first name counts, as for parameters.
    if (!seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
    if (slices_of && slices_of(name, buffer.sizes()).empty()) continue;
    if (buffer.is_meta() && !world.device().is_meta()) {
      TORCH_CHECK_VALUE(
          purpose == Purpose::load, "[checkpoint] buffer '", name,
          "' has no values: call sherd::initialise(model) first");
      replace_data(buffer, at::empty(buffer.sizes(), buffer.options().device(world.device())));
    }
    StoredParameter one;
    one.name = name;
    one.buffer = buffer;
    one.slices = checked_slices(slices_of, name, buffer.sizes());
    one.pieces[Set::main] = buffer.detach().contiguous().view({-1});
    one.write_end = world.rank() == 0 ? buffer.numel() : 0;
    result.push_back(std::move(one));
  }
}

}  // namespace

void each_run(
    const StoredParameter& parameter,
    int64_t begin,
    int64_t end,
    const std::function<void(const Run&)>& visit) {
  if (!parameter.cut) return each_run(parameter.slices, begin, end, visit);
  each_run(*parameter.cut, begin, end - begin, [&](const CutRun& part) {
    const int64_t skipped = part.in_whole - part.in_part;
    each_run(parameter.slices, part.in_whole, part.in_whole + part.length, [&](Run run) {
      run.in_parameter -= skipped;
      visit(run);
    });
  });
}

std::vector<StoredParameter> stored_parameters(
    const torch::nn::Module& model,
    const ShardedModel& sharded,
    const AdamW* optimizer,
    const SlicesOf& slices_of,
    Purpose purpose) {
  const auto moments = moments_of(optimizer);
  std::vector<StoredParameter> result;
  for (const auto& shard : sharded.shards()) {
    auto one = stored_parameter(shard, slices_of);
    if (const auto found = moments.find(one.name); found != moments.end()) {
      one.pieces[Set::first_moment] = found->second->first;
      one.pieces[Set::second_moment] = found->second->second;
    }
    result.push_back(std::move(one));
  }
  if (purpose != Purpose::load_parameters) {
    add_buffers(model, sharded.world(), slices_of, purpose, result);
  }
  return result;
}

FilePlan plan_files(const std::vector<StoredParameter>& parameters, const SaveOptions& options) {
  FilePlan plan;
  std::map<std::string, int64_t> covered;  // elements of a tensor
  for (const auto& parameter : parameters) {
    const auto main = parameter.pieces[Set::main].scalar_type();
    // Buffers keep their digits: nothing else has them.
    const bool as_it_is = parameter.buffer.defined() || !c10::isFloatingType(main);
    const bool fp8 = is_exported_in_fp8(parameter, options.export_fp8);
    const auto model = as_it_is ? main
                       : fp8    ? c10::kFloat8_e4m3fn
                                : options.export_dtype.value_or(main);
    for (const auto& slice : parameter.slices) {
      covered[slice.tensor] += elements_of(slice);
      plan.add(Set::model, slice.tensor, model, slice.shape);
      if (fp8) {
        const auto scales = Fp8Export::scales_of(slice.tensor);
        const auto shape = Fp8Export::scale_shape(slice.shape);
        plan.add(Set::model, scales, c10::kFloat, shape);
        covered[scales] = shape[0] * shape[1];
      }
      if (model != main) plan.add(Set::main, slice.tensor, main, slice.shape);
      for (const Set set : {Set::first_moment, Set::second_moment}) {
        const auto& piece = parameter.pieces[set];
        if (piece.defined()) plan.add(set, slice.tensor, piece.scalar_type(), slice.shape);
      }
    }
  }
  for (const auto& [name, tensor] : plan.tensors(Set::model)) {
    TORCH_CHECK_VALUE(
        covered[name] == c10::multiply_integers(tensor.shape),
        "[checkpoint] the slices of tensor '", name, "' have ", covered[name],
        " elements, but it has ", c10::multiply_integers(tensor.shape));
  }
  plan.place(kLargestFile);
  return plan;
}

}  // namespace sherd
