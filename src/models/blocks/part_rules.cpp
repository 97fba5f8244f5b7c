// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/part_rules.h"

#include <utility>

namespace sherd {

PartRules::PartRules(const std::optional<Mesh>& mesh) {
  if (!mesh || !mesh->has("tp") || mesh->size("tp") == 1) return;
  ranks_ = mesh->size("tp");
  rank_ = mesh->coordinate("tp");
  const bool outer = mesh->has("dp_outer");
  const bool context = mesh->has("cp") && mesh->size("cp") > 1;
  std::vector<std::string> names{"dp"};
  if (outer) names.insert(names.begin(), "dp_outer");
  if (context) names.emplace_back("cp");
  lines_ = mesh->sub(names);
  if (context) lines_ = lines_->flatten({"dp", "cp"}, "dp_cp");
  axes_ = {.inner = context ? "dp_cp" : "dp", .outer = outer ? "dp_outer" : ""};
}

void PartRules::add(
    const std::string& match,
    std::vector<int64_t> shape,
    int64_t dim,
    const std::vector<int64_t>& blocks) {
  Cut cut{std::move(shape), dim, {}};
  int64_t first = 0;
  for (const int64_t block : blocks) {
    const int64_t part = block / ranks_;
    cut.ranges.push_back({first + rank_ * part, first + (rank_ + 1) * part});
    first += block;
  }
  rules_.push_back({.match = match, .mesh = lines_, .axes = axes_, .cut = std::move(cut)});
}

void PartRules::add_attention(const std::string& module, const AttentionOptions& options) {
  if (ranks_ == 1) return;
  const int64_t width = options.heads * options.head_dim;
  const int64_t narrow = options.kv_heads * options.head_dim;
  const std::vector blocks{width, narrow, narrow};
  add("*" + module + ".qkv.weight", {width + 2 * narrow, options.dim}, 0, blocks);
  if (options.qkv_bias) add("*" + module + ".qkv.bias", {width + 2 * narrow}, 0, blocks);
  add("*" + module + ".output.weight", {options.dim, width}, 1, {width});
}

void PartRules::add_feed_forward(const std::string& module, int64_t dim, int64_t ffn) {
  if (ranks_ == 1) return;
  add("*" + module + ".gate_up.weight", {2 * ffn, dim}, 0, {ffn, ffn});
  add("*" + module + ".down.weight", {dim, ffn}, 1, {ffn});
}

}  // namespace sherd
