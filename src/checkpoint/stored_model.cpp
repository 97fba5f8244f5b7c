// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stored_model.h"

#include <c10/util/Exception.h>

#include <map>

#include "checkpoint/slices.h"

namespace sherd {
namespace {

constexpr int64_t kLargestFile = int64_t{5} << 30;

std::map<std::string, const AdamW::Moments*> moments_of(const AdamW* optimizer) {
  std::map<std::string, const AdamW::Moments*> result;
  if (!optimizer) return result;
  for (const auto& moments : optimizer->moments()) result[moments.name] = &moments;
  return result;
}

}  // namespace

std::vector<StoredParameter> stored_parameters(
    const Runtime& runtime, const AdamW* optimizer, const SlicesOf& slices_of) {
  const auto moments = moments_of(optimizer);
  std::vector<StoredParameter> result;
  for (const auto* unit : runtime.units()) {
    for (const auto& group : unit->groups()) {
      for (size_t i = 0; i < group->size(); ++i) {
        const auto stored = group->stored(i);
        StoredParameter one;
        one.name = runtime.full_name(*unit, group->name(i));
        one.slices = checked_slices(slices_of, one.name, group->layout().parameters()[i].shape);
        one.pieces[Set::main] = stored.piece;
        one.begin = stored.begin;
        // Each replica writes its share of what they all have.
        const int64_t count = stored.piece.numel();
        one.write_begin = one.begin + count * stored.replica / stored.replicas;
        one.write_end = one.begin + count * (stored.replica + 1) / stored.replicas;
        if (const auto found = moments.find(one.name); found != moments.end()) {
          one.pieces[Set::first_moment] = found->second->first;
          one.pieces[Set::second_moment] = found->second->second;
        }
        result.push_back(std::move(one));
      }
    }
  }
  return result;
}

FilePlan plan_files(
    const std::vector<StoredParameter>& parameters, std::optional<c10::ScalarType> export_dtype) {
  FilePlan plan;
  std::map<std::string, int64_t> covered;  // elements of a tensor
  for (const auto& parameter : parameters) {
    const auto main = parameter.pieces[Set::main].scalar_type();
    const auto model = c10::isFloatingType(main) ? export_dtype.value_or(main) : main;
    for (const auto& slice : parameter.slices) {
      covered[slice.tensor] += elements_of(slice);
      plan.add(Set::model, slice.tensor, model, slice.shape);
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
