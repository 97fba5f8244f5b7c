// SPDX-License-Identifier: Apache-2.0
#include "sherd/checkpoint/inspect.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "checkpoint/reader.h"
#include "files/byte_text.h"

namespace sherd {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 20;  // elements

std::string shape_text(const std::vector<int64_t>& shape) {
  std::ostringstream out;
  out << c10::IntArrayRef(shape);
  return out.str();
}

/// Main weights stand for themselves where they are not the model's.
PerSet<std::map<std::string, PlannedTensor>> comparable(const CheckpointReader& reader) {
  PerSet<std::map<std::string, PlannedTensor>> result;
  for (const Set set : kSets) result[set] = reader.tensors(set);
  for (const auto& [name, tensor] : result[Set::model]) result[Set::main].try_emplace(name, tensor);
  result[Set::model].clear();
  return result;
}

/// The largest difference, and the relative one.
std::pair<double, double> distance(
    CheckpointReader& one,
    const PlannedTensor& a,
    CheckpointReader& other,
    const PlannedTensor& b) {
  double largest = 0, difference = 0, norm = 0;
  const int64_t count = c10::multiply_integers(a.shape);
  const auto values = [](CheckpointReader& reader, const PlannedTensor& tensor, int64_t at,
                         int64_t n) {
    auto* bytes = const_cast<unsigned char*>(reader.read(tensor, at, n).data());
    return at::from_blob(bytes, {n}, at::TensorOptions(tensor.dtype)).to(at::kDouble);
  };
  for (int64_t at = 0; at < count; at += kElementsAtOnce) {
    const int64_t n = std::min(kElementsAtOnce, count - at);
    const auto x = values(one, a, at, n);
    const auto apart = x - values(other, b, at, n);
    const double here = apart.abs().max().item<double>();
    largest = std::isnan(here) ? here : std::max(largest, here);
    difference += apart.square().sum().item<double>();
    norm += x.square().sum().item<double>();
  }
  return {largest, difference == 0 ? 0 : std::sqrt(difference / norm)};
}

std::string dtype_difference(const PlannedTensor& a, const PlannedTensor& b) {
  if (a.dtype == b.dtype) return "";
  std::ostringstream out;
  out << "dtype " << a.dtype << " and " << b.dtype;
  return out.str();
}

/// The tensors of the model where either checkpoint has main weights as well: their values follow
/// from those, their dtypes do not.
void add_model_dtypes(
    const CheckpointReader& one,
    const CheckpointReader& other,
    std::vector<TensorDifference>& result) {
  for (const auto& [name, tensor] : one.tensors(Set::model)) {
    const auto found = other.tensors(Set::model).find(name);
    if (found == other.tensors(Set::model).end()) continue;
    if (!one.tensors(Set::main).contains(name) && !other.tensors(Set::main).contains(name)) {
      continue;
    }
    if (const auto text = dtype_difference(tensor, found->second); !text.empty()) {
      result.push_back({name + " (" + to_text(Set::model) + ")", text});
    }
  }
}

}  // namespace

std::string describe_checkpoint(const std::string& folder) {
  const CheckpointReader reader(folder);
  const auto& state = reader.state();
  std::ostringstream out;
  for (const auto& [name, value] : state.items()) {
    if (value.is_number_integer() && name != "version") out << name << ' ' << value << '\n';
  }
  if (state.contains("optimizer")) out << "optimizer " << state["optimizer"].dump() << '\n';
  int64_t total = 0;
  for (const auto& [name, bytes] : state["files"].items()) {
    out << name << "  " << byte_text(bytes.get<int64_t>()) << '\n';
    total += bytes.get<int64_t>();
  }
  out << "in all " << byte_text(total) << '\n';
  for (const Set set : kSets) {
    for (const auto& [name, tensor] : reader.tensors(set)) {
      out << to_text(set) << "  " << name << "  " << tensor.dtype << ' ' << shape_text(tensor.shape)
          << '\n';
    }
  }
  return out.str();
}

std::vector<TensorDifference> compare_checkpoints(
    const std::string& one, const std::string& other) {
  CheckpointReader first(one), second(other);
  const auto ours = comparable(first);
  const auto theirs = comparable(second);
  std::vector<TensorDifference> result;
  for (const Set set : kSets) {
    const auto label = [&](const std::string& name) { return name + " (" + to_text(set) + ")"; };
    for (const auto& [name, tensor] : ours[set]) {
      const auto found = theirs[set].find(name);
      if (found == theirs[set].end()) {
        result.push_back({label(name), "only in " + one});
        continue;
      }
      const auto& same = found->second;
      if (same.shape != tensor.shape) {
        result.push_back(
            {label(name), "shape " + shape_text(tensor.shape) + " and " + shape_text(same.shape)});
        continue;
      }
      const auto dtypes = dtype_difference(tensor, same);
      const auto [largest, relative] = distance(first, tensor, second, same);
      if (!dtypes.empty() || largest != 0) {
        result.push_back({label(name), dtypes, largest, relative});
      }
    }
    for (const auto& [name, tensor] : theirs[set]) {
      if (!ours[set].contains(name)) result.push_back({label(name), "only in " + other});
    }
  }
  add_model_dtypes(first, second, result);
  return result;
}

}  // namespace sherd
