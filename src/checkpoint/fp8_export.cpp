// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fp8_export.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "checkpoint/slices.h"
#include "kernels/fp8/encode.h"
#include "kernels/fp8/encode_loops.h"
#include "kernels/fp8/fp8_math.h"
#include "shard/glob.h"

namespace sherd {
namespace {

constexpr int64_t kMeasuredAtOnce = 1 << 20;  // elements that are brought to the CPU together

int64_t blocks_of(int64_t size) {
  return (size + kFp8Tile - 1) / kFp8Tile;
}

}  // namespace

bool is_exported_in_fp8(
    const StoredParameter& parameter, const std::vector<std::string>& patterns) {
  if (parameter.buffer.defined() ||
      !c10::isFloatingType(parameter.pieces[Set::main].scalar_type())) {
    return false;
  }
  const bool matrices = std::all_of(
      parameter.slices.begin(), parameter.slices.end(),
      [](const TensorSlice& slice) { return slice.shape.size() == 2; });
  return matrices && std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return matches_glob(pattern, parameter.name);
         });
}

template <class Visit>
void Fp8Export::each_stretch(const Matrix& matrix, int64_t first, int64_t count, Visit visit) {
  const int64_t across = blocks_of(matrix.columns);
  for (int64_t done = 0; done < count;) {
    const int64_t row = (first + done) / matrix.columns;
    const int64_t column = (first + done) % matrix.columns;
    const int64_t end = std::min((column / kFp8Tile + 1) * kFp8Tile, matrix.columns);
    const int64_t length = std::min(count - done, end - column);
    visit(done, length, matrix.first + row / kFp8Tile * across + column / kFp8Tile);
    done += length;
  }
}

Fp8Export::Fp8Export(
    const std::vector<StoredParameter>& parameters, const std::vector<std::string>& patterns) {
  int64_t count = 0;
  for (const auto& pattern : patterns) {
    const bool matched = std::any_of(
        parameters.begin(), parameters.end(),
        [&](const StoredParameter& one) { return is_exported_in_fp8(one, {pattern}); });
    TORCH_CHECK_VALUE(
        matched, "[checkpoint] SaveOptions::export_fp8 has '", pattern,
        "', which matches no matrix of the model: correct or remove it");
  }
  for (const auto& parameter : parameters) {
    if (!is_exported_in_fp8(parameter, patterns)) continue;
    for (const auto& slice : parameter.slices) {
      const Matrix matrix{slice.shape[0], slice.shape[1], count};
      if (!tensors_.try_emplace(slice.tensor, matrix).second) continue;
      count += blocks_of(matrix.rows) * blocks_of(matrix.columns);
    }
  }
  amaxes_ = at::zeros({count}, at::kInt);
  auto* amaxes = amaxes_.mutable_data_ptr<int32_t>();
  for (const auto& parameter : parameters) {
    if (!is_exported_in_fp8(parameter, patterns)) continue;
    const auto& piece = parameter.pieces[Set::main];
    const int64_t end = parameter.begin + piece.numel();
    each_run(parameter, parameter.begin, end, [&](const Run& run) {
      const auto& matrix = tensors_.at(*run.tensor);
      for (int64_t done = 0; done < run.length; done += kMeasuredAtOnce) {
        const int64_t some = std::min(kMeasuredAtOnce, run.length - done);
        const auto values = piece.narrow(0, run.in_parameter - parameter.begin + done, some)
                                .to(at::kCPU, at::kFloat);
        const auto* data = values.const_data_ptr<float>();
        each_stretch(
            matrix, run.in_tensor + done, some, [&](int64_t at, int64_t length, int64_t scale) {
              const auto bits = static_cast<int32_t>(fp8::largest_magnitude(data + at, length));
              amaxes[scale] = std::max(amaxes[scale], bits);
            });
      }
    });
  }
}

void Fp8Export::exchange(const World& world) {
  if (tensors_.empty()) return;
  const auto shared = amaxes_.to(world.device());
  world.communicator().all_reduce(shared, Reduction::max()).synchronize();
  amaxes_ = shared.to(at::kCPU);
}

std::vector<int64_t> Fp8Export::scale_shape(const std::vector<int64_t>& shape) {
  return {blocks_of(shape[0]), blocks_of(shape[1])};
}

std::vector<std::string> Fp8Export::tensors() const {
  std::vector<std::string> names;
  for (const auto& [name, matrix] : tensors_) names.push_back(name);
  return names;
}

at::Tensor Fp8Export::scales(const std::string& tensor) const {
  const auto& matrix = tensors_.at(tensor);
  const auto result = at::empty(scale_shape({matrix.rows, matrix.columns}), at::kFloat);
  auto* numbers = result.mutable_data_ptr<float>();
  const auto* amaxes = amaxes_.const_data_ptr<int32_t>() + matrix.first;
  for (int64_t i = 0; i < result.numel(); ++i) {
    numbers[i] = fp8::scale_of(static_cast<uint32_t>(amaxes[i]));
  }
  return result;
}

std::vector<uint8_t> Fp8Export::encode(
    const std::string& tensor, int64_t first, const at::Tensor& values) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(values.numel()));
  const auto* amaxes = amaxes_.const_data_ptr<int32_t>();
  const auto* data = values.const_data_ptr<float>();
  each_stretch(
      tensors_.at(tensor), first, values.numel(), [&](int64_t at, int64_t length, int64_t scale) {
        const float factor = fp8::inverse_of(fp8::scale_of(static_cast<uint32_t>(amaxes[scale])));
        fp8::encode_all(data + at, factor, bytes.data() + at, length);
      });
  return bytes;
}

}  // namespace sherd
