// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/weights_folder.h"

#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "models/huggingface/config_file.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kScales = "_scale_inv";  // behind the name of the weight that they scale

/// Returns the blocks of weights in fp8; {} without a config.json, or if that has none.
std::vector<int64_t> fp8_blocks(const fs::path& path) {
  if (!fs::exists(path)) return {};
  const auto json = read_json(path);
  const auto found = json.find("quantization_config");
  if (found == json.end() || found->is_null()) return {};
  const auto entry = [&](const char* key) {
    return found->is_object() && found->contains(key) ? (*found)[key] : Json();
  };
  const auto method = entry("quant_method"), blocks = entry("weight_block_size");
  TORCH_CHECK_VALUE(
      method == "fp8", "[model.from] ", path.string(),
      ": quantization_config.quant_method = ", method.dump().substr(0, 60),
      ": only \"fp8\" with scales by blocks can be read; save the model in bf16 first");
  const bool fine = blocks.is_array() && blocks.size() == 2 &&
                    std::all_of(blocks.begin(), blocks.end(), [](const Json& one) {
                      return one.is_number_integer() && one.get<int64_t>() > 0;
                    });
  TORCH_CHECK_VALUE(
      fine, "[model.from] ", path.string(),
      ": quantization_config.weight_block_size = ", blocks.dump().substr(0, 60),
      ": it must be two whole numbers above 0, such as [128, 128]; other scales can't be read, so "
      "save the model in bf16 first");
  return blocks.get<std::vector<int64_t>>();
}

}  // namespace

WeightsFolder::WeightsFolder(const fs::path& folder)
    : folder_(folder), block_(fp8_blocks(folder / "config.json")) {
  const auto index = folder / "model.safetensors.index.json";
  if (!fs::exists(index)) {
    const auto name = "model.safetensors";
    TORCH_CHECK_VALUE(
        fs::exists(folder / name), "[model.from] ", folder.string(),
        " has no weights: neither model.safetensors nor ", index.filename().string(),
        "; copy them there, or choose another model.from");
    for (const auto& [tensor, about] : open(name).tensors()) files_[tensor] = name;
    return;
  }
  const auto json = read_json(index);
  const auto map = json.find("weight_map");
  TORCH_CHECK_VALUE(
      map != json.end() && map->is_object(), "[model.from] ", index.string(), " has no weight_map");
  TORCH_CHECK_VALUE(!map->empty(), "[model.from] ", index.string(), ": its weight_map is empty");
  for (const auto& [name, file] : map->items()) {
    TORCH_CHECK_VALUE(
        file.is_string() && fs::path(file.get<std::string>()).filename() == file.get<std::string>(),
        "[model.from] ", index.string(), ": the file of '", name, "' is ",
        file.dump().substr(0, 60), ": it must be the name of a file in the same folder");
    files_[name] = file.get<std::string>();
  }
}

const SafetensorsFile& WeightsFolder::open(const std::string& file) {
  const auto found = open_.find(file);
  if (found != open_.end()) return found->second;
  return open_.emplace(file, (folder_ / file).string()).first->second;
}

const SafetensorsFile& WeightsFolder::file_of(const std::string& name) {
  const auto found = files_.find(name);
  TORCH_CHECK_VALUE(
      found != files_.end(), "[model.from] ", folder_.string(), " has no tensor '", name,
      "', which the model of config.json needs");
  const auto& file = open(found->second);
  TORCH_CHECK_VALUE(
      file.tensors().contains(name), "[model.from] ", file.path(), " has no tensor '", name,
      "', although model.safetensors.index.json lists it there");
  return file;
}

const SafetensorsFile& WeightsFolder::checked(const std::string& name, at::IntArrayRef shape) {
  const auto& file = file_of(name);
  const at::IntArrayRef there(file.tensors().at(name).shape);
  TORCH_CHECK_VALUE(
      there == shape, "[model.from] ", file.path(), ": tensor '", name, "' has the shape ", there,
      ", but by config.json it is ", shape);
  return file;
}

bool WeightsFolder::is_fp8(const SafetensorsFile& file, const std::string& name) const {
  const auto dtype = file.tensors().at(name).dtype;
  if (c10::elementSize(dtype) > 1) return false;
  TORCH_CHECK_VALUE(
      dtype == c10::kFloat8_e4m3fn && !block_.empty(), "[model.from] ", file.path(), ": tensor '",
      name, "' is in ", dtype,
      ": weights in 8 bits must be in F8_E4M3, with scales by blocks and a quantization_config in "
      "config.json that says so");
  return true;
}

std::vector<int64_t> WeightsFolder::scale_shape(at::IntArrayRef shape) const {
  std::vector<int64_t> result;
  for (size_t dim = 0; dim < shape.size() && dim < block_.size(); ++dim) {
    result.push_back((shape[dim] + block_[dim] - 1) / block_[dim]);
  }
  return result;
}

void WeightsFolder::check_names(const TensorShapes& shapes) const {
  for (const auto& [name, shape] : shapes) {
    TORCH_CHECK_VALUE(
        files_.contains(name), "[model.from] ", folder_.string(), " has no tensor '", name,
        "', which the model of config.json needs");
  }
  for (const auto& [name, file] : files_) {
    // Ignored: the copy of a tied head, and stored angles, which follow from config.json.
    const bool spare = name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq");
    const bool scales =
        !block_.empty() && name.ends_with(kScales) &&
        shapes.contains(name.substr(0, name.size() - std::string_view(kScales).size()));
    TORCH_CHECK_VALUE(
        spare || scales || shapes.contains(name), "[model.from] ", (folder_ / file).string(),
        " has a tensor '", name, "', which the model of config.json does not have");
  }
}

void WeightsFolder::check(const std::string& name, at::IntArrayRef shape) {
  const auto& file = checked(name, shape);
  if (!is_fp8(file, name)) return;
  const auto& scales = checked(name + kScales, scale_shape(shape));
  const auto dtype = scales.tensors().at(name + kScales).dtype;
  TORCH_CHECK_VALUE(
      shape.size() == 2 && c10::isFloatingType(dtype) && c10::elementSize(dtype) > 1,
      "[model.from] ", scales.path(), ": the scales of '", name, "' are in ", dtype, " for ", shape,
      ": they must be of 16 bits or more, and the weight a matrix");
}

at::Tensor WeightsFolder::read(
    const std::string& name, at::IntArrayRef shape, int64_t begin, int64_t count) {
  const auto& file = checked(name, shape);
  const auto stored = file.read(name, begin, count);
  if (!is_fp8(file, name)) return stored;
  check(name, shape);
  auto values = stored.to(c10::kFloat);
  const auto scales = file_of(name + kScales).read(name + kScales).to(c10::kFloat).contiguous();
  const auto* scale = scales.const_data_ptr<float>();
  auto* value = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (begin + i) / shape[1] / block_[0];
    const int64_t column = (begin + i) % shape[1] / block_[1];
    value[i] *= scale[row * scales.size(1) + column];
  }
  return values;
}

}  // namespace sherd
