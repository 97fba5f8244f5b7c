// SPDX-License-Identifier: Apache-2.0
#include "models/huggingface/config_file.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "checkpoint/mapped_file.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr std::uintmax_t kLargest = 16 << 20;  // bytes of a JSON file
constexpr int kDeepest = 32;                   // levels of JSON

/// Returns a value as text for messages; what is nested deeper is left out.
std::string shown(const Json& value) {
  const bool deep = std::any_of(value.begin(), value.end(), [&](const Json& one) {
    return value.is_structured() && one.is_structured();
  });
  return deep ? (value.is_array() ? "[…]" : "{…}") : value.dump().substr(0, 60);
}

}  // namespace

Json read_json(const fs::path& path) {
  std::error_code code;
  const auto size = fs::file_size(path, code);
  TORCH_CHECK_VALUE(
      !code, "[model.from] ", path.string(),
      " can't be read: model.from is a folder with config.json ",
      "and model.safetensors, as save_pretrained writes it");
  TORCH_CHECK_VALUE(
      size <= kLargest, "[model.from] ", path.string(), " has ", size,
      " bytes, too many for such a file");
  const MappedFile file(path.string());
  auto parsed = parse_json<Json>(
      {reinterpret_cast<const char*>(file.data()), file.size()}, {.levels = kDeepest});
  using Problem = ParsedJson<Json>::Problem;
  TORCH_CHECK_VALUE(
      parsed.problem != Problem::too_deep, "[model.from] ", path.string(), " is nested more than ",
      kDeepest, " levels deep, too deep for such a file");
  TORCH_CHECK_VALUE(
      parsed.problem != Problem::not_json, "[model.from] ", path.string(), " is not JSON (",
      parsed.parser_message, ")");
  TORCH_CHECK_VALUE(parsed.is_object(), "[model.from] ", path.string(), " is not a JSON object");
  return std::move(parsed.value);
}

int64_t ConfigFile::count(
    const char* key, std::optional<int64_t> otherwise, int bits, int64_t least) const {
  const auto* value = find(key, otherwise.has_value());
  if (!value) return *otherwise;
  const bool fine = value->is_number_integer() && value->get<int64_t>() >= least &&
                    value->get<int64_t>() <= int64_t{1} << bits;
  TORCH_CHECK_VALUE(
      fine, "[model.from] ", path_, ": ", key, " = ", shown(*value), ": it must be a whole number ",
      least == 1 ? "above 0" : c10::str("from ", least), " and at most ", int64_t{1} << bits);
  return value->get<int64_t>();
}

double ConfigFile::real(const char* key, std::optional<double> otherwise) const {
  const auto* value = find(key, otherwise.has_value());
  if (!value) return *otherwise;
  TORCH_CHECK_VALUE(
      value->is_number() && value->get<double>() > 0, "[model.from] ", path_, ": ", key, " = ",
      shown(*value), ": it must be a number above 0");
  return value->get<double>();
}

double ConfigFile::weight(const char* key, double otherwise) const {
  const auto* value = find(key, true);
  if (!value) return otherwise;
  TORCH_CHECK_VALUE(
      value->is_number() && value->get<double>() >= 0, "[model.from] ", path_, ": ", key, " = ",
      shown(*value), ": it must be a number of at least 0");
  return value->get<double>();
}

bool ConfigFile::flag(const char* key, bool otherwise) const {
  const auto* value = find(key, true);
  if (!value) return otherwise;
  TORCH_CHECK_VALUE(
      value->is_boolean(), "[model.from] ", path_, ": ", key, " = ", shown(*value),
      ": it must be true or false");
  return value->get<bool>();
}

std::string ConfigFile::word(const char* key) const {
  const auto* value = find(key, true);
  return value && value->is_string() ? value->get<std::string>() : "";
}

std::vector<std::string> ConfigFile::words(const char* key) const {
  const auto* value = find(key, true);
  if (!value) return {};
  const bool fine =
      value->is_array() &&
      std::all_of(value->begin(), value->end(), [](const Json& one) { return one.is_string(); });
  TORCH_CHECK_VALUE(
      fine, "[model.from] ", path_, ": ", key, " = ", shown(*value),
      ": it must be a list of strings");
  return value->get<std::vector<std::string>>();
}

std::vector<int64_t> ConfigFile::indices(const char* key, int64_t below) const {
  const auto* value = find(key, true);
  if (!value) return {};
  const bool fine = value->is_array() && std::all_of(value->begin(), value->end(), [&](auto& one) {
                      return one.is_number_integer() && one.template get<int64_t>() >= 0 &&
                             one.template get<int64_t>() < below;
                    });
  TORCH_CHECK_VALUE(
      fine, "[model.from] ", path_, ": ", key, " = ", shown(*value),
      ": it must be a list of whole numbers from 0 to ", below - 1);
  return value->get<std::vector<int64_t>>();
}

std::optional<ConfigFile> ConfigFile::inner(const char* key) const {
  const auto* value = find(key, true);
  if (!value) return std::nullopt;
  TORCH_CHECK_VALUE(
      value->is_object(), "[model.from] ", path_, ": ", key, " = ", shown(*value),
      ": it must be an object");
  return ConfigFile(*value, path_ + ": " + key);
}

void ConfigFile::require(const char* key, const Json& wanted) const {
  const auto* value = find(key, true);
  TORCH_CHECK_VALUE(
      !value || *value == wanted, "[model.from] ", path_, ": ", key, " = ", shown(*value),
      ": only ", wanted.dump(), " is supported");
}

void ConfigFile::refuse(const char* key, const std::string& reason) const {
  const auto* value = find(key, true);
  TORCH_CHECK_VALUE(
      false, "[model.from] ", path_, ": ", key, " = ", value ? shown(*value) : "null", ": ",
      reason);
}

const Json* ConfigFile::find(const char* key, bool optional) const {
  const auto found = json_.find(key);
  if (found != json_.end() && !found->is_null()) return &*found;
  TORCH_CHECK_VALUE(optional, "[model.from] ", path_, " has no ", key);
  return nullptr;
}

}  // namespace sherd
