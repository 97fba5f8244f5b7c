// SPDX-License-Identifier: Apache-2.0
#include "train/pretrained_files.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "configuration/setup.h"
#include "files/parse_json.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Files = std::map<std::string, std::string>;

constexpr std::uintmax_t kLargest = std::uintmax_t{256} << 20;  // bytes of a tokenizer's file
const char* const kOfTokenizer[] = {"tokenizer.json",      "tokenizer_config.json",
                                    "tokenizer.model",     "special_tokens_map.json",
                                    "added_tokens.json",   "vocab.json",
                                    "vocab.txt",           "merges.txt",
                                    "chat_template.jinja", "chat_template.json"};
const char* const kOfGeneration[] = {"generation_config.json"};

std::optional<std::string> read(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) return std::nullopt;
  TORCH_CHECK_VALUE(
      fs::file_size(path, code) <= kLargest && !code, "[train] ", path.string(), " has more than ",
      kLargest, " bytes: it is not a tokenizer file");
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  TORCH_CHECK_VALUE(in.good(), "[train] ", path.string(), " can't be read");
  return text.str();
}

template <class Names>
void add(const fs::path& folder, const Names& names, Files& files) {
  for (const char* name : names) {
    if (auto text = read(folder / name)) files[name] = std::move(*text);
  }
}

void add_tokenizer(const fs::path& path, Files& files) {
  std::error_code code;
  if (fs::is_directory(path, code)) {
    const auto before = files.size();
    add(path, kOfTokenizer, files);
    TORCH_CHECK_VALUE(
        files.size() > before, "[train] data.tokenizer = ", path.string(),
        " has no tokenizer file, such as tokenizer.json");
    return;
  }
  auto text = read(path);
  TORCH_CHECK_VALUE(
      text, "[train] data.tokenizer = ", path.string(),
      " is neither a file nor a folder: give a tokenizer.json or its folder");
  const bool json = path.extension() == ".json";
  files[json ? "tokenizer.json" : path.filename().string()] = std::move(*text);
}

Json parsed(const Files& files, const char* name) {
  const auto found = files.find(name);
  if (found == files.end()) return Json::object();
  auto json = parse_json<Json>(found->second);
  return json.is_object() ? std::move(json.value) : Json::object();
}

/// The number of a special token, such as "eos_token", by what the tokenizer's files say.
std::optional<int64_t> special_token(const Files& files, const char* which) {
  Json token;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto json = parsed(files, name);
    if (token.is_null() && json.contains(which)) token = json[which];
  }
  if (token.is_object() && token.contains("content")) token = token["content"];
  const auto tokenizer = parsed(files, "tokenizer.json");
  if (!token.is_string() || !tokenizer.contains("added_tokens")) return std::nullopt;
  for (const auto& one : tokenizer["added_tokens"]) {
    const bool fine = one.is_object() && one.contains("content") && one.contains("id");
    if (fine && one["content"] == token && one["id"].is_number_integer()) {
      return one["id"].get<int64_t>();
    }
  }
  return std::nullopt;
}

const char* torch_name(c10::ScalarType dtype) {
  return dtype == c10::kBFloat16 ? "bfloat16" : dtype == c10::kHalf ? "float16" : "float32";
}

/// Of a model that began from nothing: what the checkpoint says that it goes on from, beyond what
/// the configuration says.
void take_metadata(const Json& from, Json& config) {
  for (const auto& [key, value] : from.items()) {
    if (key.starts_with("rope_")) continue;  // of the model, not about it
    if (!config.contains(key) || config[key].is_null()) config[key] = value;
  }
  const auto longest = from.find("max_position_embeddings");
  if (longest != from.end() && longest->is_number_integer()) {
    auto& mine = config["max_position_embeddings"];
    mine = std::max(mine.get<int64_t>(), longest->get<int64_t>());
  }
}

Json config_of(
    const Configuration& configuration,
    const std::string& own,
    const Files& files,
    const std::string& resumed_from) {
  auto config = Json::parse(own);
  if (configuration.model.from) return config;  // it is the folder's
  config["max_position_embeddings"] = configuration.data.seq;
  for (const char* name : {"bos", "eos", "pad"}) {
    const auto id = special_token(files, (std::string(name) + "_token").c_str());
    config[std::string(name) + "_token_id"] = id ? Json(*id) : Json();
  }
  if (resumed_from.empty()) return config;
  if (const auto text = read(fs::path(resumed_from) / "config.json")) {
    take_metadata(parsed({{"config.json", *text}}, "config.json"), config);
  }
  return config;
}

/// Returns quantization_config for transformers; modules_to_not_convert lists what stays in 16
/// bits.
Json fp8_config(const LanguageModel& model, const std::vector<std::string>& exported) {
  Json others = {"lm_head"};
  for (const auto& item : model.named_parameters()) {
    const bool in_fp8 = std::find(exported.begin(), exported.end(), item.key()) != exported.end();
    const bool product = item.value().dim() >= 2 && item.key().rfind("layer", 0) == 0;
    if (in_fp8 || !product) continue;
    for (const auto& slice : model.slices_of(item.key(), whole_shape(item.value()))) {
      others.push_back(slice.tensor.substr(0, slice.tensor.rfind('.')));
    }
  }
  return {
      {"quant_method", "fp8"},
      {"fmt", "e4m3"},
      {"activation_scheme", "dynamic"},
      {"weight_block_size", {128, 128}},
      {"modules_to_not_convert", others}};
}

}  // namespace

void check_tokenizer(const std::string& path) {
  Files files;
  add_tokenizer(path, files);
}

std::map<std::string, std::string> pretrained_files(
    const Configuration& configuration,
    const LanguageModel& model,
    c10::ScalarType dtype,
    const std::string& resumed_from) {
  Files files;
  const auto source = configuration.model.from.value_or(resumed_from);
  if (!source.empty()) add(source, kOfGeneration, files);
  if (configuration.data.tokenizer) {
    add_tokenizer(*configuration.data.tokenizer, files);
  } else if (!source.empty()) {
    add(source, kOfTokenizer, files);
  }
  if (const auto own = model.config()) {
    auto config = config_of(configuration, *own, files, resumed_from);
    // transformers has called it dtype since 4.56 and reads both.
    if (config.contains("dtype")) config["dtype"] = torch_name(dtype);
    if (!config.contains("dtype") || config.contains("torch_dtype")) {
      config["torch_dtype"] = torch_name(dtype);
    }
    config.erase("quantization_config");  // that of model.from
    const auto exported = export_fp8_of(configuration, model);
    if (!exported.empty()) config["quantization_config"] = fp8_config(model, exported);
    files["config.json"] = config.dump(2) + "\n";
  }
  return files;
}

}  // namespace sherd
