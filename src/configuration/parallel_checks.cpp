// SPDX-License-Identifier: Apache-2.0
#include "configuration/parallel_checks.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "configuration/axes.h"
#include "configuration/strategies.h"
#include "configuration/to_toml.h"
#include "shard/glob.h"
#include "sherd/shard/precision.h"

namespace sherd {
namespace {

std::string is_set(const char* name, int64_t value) {
  return std::string(name) + " = " + std::to_string(value);
}

bool has_layer(const ModelSection& model, char letter) {
  return model.pattern.find(letter) != std::string::npos;
}

/// Calls visit(key, size) for what each rank along tp has an equal part of.
template <class Visit>
void each_parted_size(const ModelSection& model, const Visit& visit) {
  const bool hybrid = model.kind == "hybrid";
  if (!hybrid || has_layer(model, '*')) {
    visit("model.heads", model.heads);
    visit("model.kv_heads", model.kv_heads > 0 ? model.kv_heads : model.heads);
  }
  if (model.ffn > 0 && (model.kind == "llama" || (hybrid && has_layer(model, '-')))) {
    visit("model.ffn", model.ffn);
  }
  if (model.shared_ffn > 0 && has_experts(model)) visit("model.shared_ffn", model.shared_ffn);
}

/// Mamba-2 layers exchange heads for positions.
void check_state_space(
    const Configuration& all, const ModelSection& model, std::vector<std::string>& problems) {
  if (model.kind != "hybrid" || !has_layer(model, 'M')) return;
  const int64_t sharing = sharing_ranks_of(all);
  const int64_t heads = model.ssm_expand * model.dim / model.ssm_head_dim;
  const int64_t groups = model.ssm_groups;
  if (heads % sharing == 0 && (groups % sharing == 0 || sharing % groups == 0)) return;
  problems.push_back(
      is_set("parallel.cp", all.parallel.cp) + ", " + is_set("parallel.tp", all.parallel.tp) +
      ": their product must divide Mamba-2's heads, ssm_expand · dim / ssm_head_dim = " +
      std::to_string(heads) + ", and divide " + is_set("model.ssm_groups", groups) +
      " or be a multiple of it");
}

/// A weight of which each rank along tp has an equal part, in every layer of a kind.
struct PartedWeight {
  std::string name;  ///< after the layer's name
  char letter;       ///< of a hybrid's layers that have it
  int64_t size;      ///< of the dim that is divided
  const char* dim;
  const char* keep;  ///< patterns that leave it in bf16, and what must be as wide as it
};

std::vector<PartedWeight> parted_weights(const ModelSection& model) {
  const bool hybrid = model.kind == "hybrid";
  const int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.dim / model.heads;
  const int64_t kv_heads = model.kv_heads > 0 ? model.kv_heads : model.heads;
  std::vector<PartedWeight> result{
      {"attention.qkv.weight", '*', (model.heads + 2 * kv_heads) * head_dim, "rows",
       "*.qkv.weight"},
      {"attention.output.weight", '*', model.heads * head_dim, "columns",
       "*.attention.output.weight"}};
  const auto add_feed_forward = [&](const std::string& module, char letter, int64_t ffn) {
    const auto* keep = "*.gate_up.weight\", \"*.down.weight";
    result.push_back({module + ".gate_up.weight", letter, 2 * ffn, "rows", keep});
    result.push_back({module + ".down.weight", letter, ffn, "columns", keep});
  };
  const int64_t ffn = model.ffn > 0 ? model.ffn : usual_ffn(model.dim);
  if (model.kind == "llama") add_feed_forward("feed_forward", '-', ffn);
  if (hybrid) add_feed_forward("mixer", '-', ffn);
  if (model.shared_ffn > 0) {
    if (model.kind == "moe") add_feed_forward("experts.shared", 'E', model.shared_ffn);
    if (hybrid) add_feed_forward("mixer.shared", 'E', model.shared_ffn);
  }
  return result;
}

/// Returns whether a layer has the weight in fp8.
bool is_in_fp8(
    const PartedWeight& weight, const ModelSection& model, const std::vector<std::string>& keep) {
  for (int64_t i = 0; i < model.layers; ++i) {
    const auto letter = model.kind == "hybrid" && !model.pattern.empty()
                            ? model.pattern[static_cast<size_t>(i) % model.pattern.size()]
                            : weight.letter;
    const auto name = "layer" + std::to_string(i) + "." + weight.name;
    const bool kept = std::any_of(keep.begin(), keep.end(), [&](const std::string& pattern) {
      return matches_glob(pattern, name);
    });
    if (letter == weight.letter && !kept) return true;
  }
  return false;
}

/// Parts of weights in fp8 have whole blocks.
void check_fp8_parts(
    const Configuration& all, const ModelSection& model, std::vector<std::string>& problems) {
  const auto& precision = all.precision;
  const int64_t tp = all.parallel.tp;
  const auto fp8 = precision.recipe ? Precision::recipe(*precision.recipe).fp8 : Fp8::none;
  if (tp == 1 || fp8 == Fp8::none) return;
  const int64_t multiple = fp8 == Fp8::blocks ? 128 : fp8 == Fp8::mx ? 32 : 16;
  for (const auto& weight : parted_weights(model)) {
    if (weight.size % tp != 0 || weight.size / tp % multiple == 0) continue;
    if (!is_in_fp8(weight, model, precision.keep)) continue;
    problems.push_back(
        is_set("parallel.tp", tp) + ": with precision.recipe = " + to_toml(precision.recipe) +
        " a rank's part of *." + weight.name + " must have a multiple of " +
        std::to_string(multiple) + " " + weight.dim + "; it has " +
        std::to_string(weight.size / tp) + ". Set a smaller parallel.tp, or precision.keep = [\"" +
        weight.keep + "\"]");
  }
}

}  // namespace

int64_t usual_ffn(int64_t dim) {
  return (8 * dim / 3 + 63) / 64 * 64;
}

bool has_experts(const ModelSection& model) {
  return model.kind == "moe" || (model.kind == "hybrid" && has_layer(model, 'E'));
}

void check_sharing(
    const Configuration& all, const ModelSection& model, std::vector<std::string>& problems) {
  const auto [cp, tp] = std::pair(all.parallel.cp, all.parallel.tp);
  if (cp * tp == 1) return;
  const auto key = tp == 1   ? is_set("parallel.cp", cp)
                   : cp == 1 ? is_set("parallel.tp", tp)
                             : is_set("parallel.cp", cp) + ", " + is_set("parallel.tp", tp);
  if (model.kind == "vlm") {
    problems.push_back(
        key +
        ": ranks can't share the sequences of a model of kind \"vlm\", whose images are "
        "whole; remove it");
    return;
  }
  const int64_t multiple = sequence_multiple_of(all);
  if (all.data.seq % multiple != 0) {
    problems.push_back(
        is_set("data.seq", all.data.seq) + ": with " + key + " it must be a multiple of " +
        std::to_string(multiple) + (cp > 1 ? ", which is 2 · cp · tp" : ""));
  }
  each_parted_size(model, [&](const char* name, int64_t size) {
    if (size % tp == 0) return;
    problems.push_back(is_set("parallel.tp", tp) + ": it must divide " + is_set(name, size));
  });
  if (tp > 1 && model.qk_norm_across) {
    problems.push_back(
        is_set("parallel.tp", tp) +
        ": the model norms queries and keys over all heads (model.qk_norm_across), and a rank "
        "would "
        "have only its own; set parallel.tp = 1");
  }
  check_fp8_parts(all, model, problems);
  check_state_space(all, model, problems);
}

void check_experts(const Configuration& all, std::vector<std::string>& problems) {
  const auto require = [&](bool fine, const std::string& text) {
    if (!fine) problems.push_back(text);
  };
  const auto& [shard, model] = std::tie(all.shard, all.model);
  const int64_t ep = all.parallel.ep;
  for (const auto& [name, value] :
       {std::pair("shard.expert_strategy", &shard.expert_strategy),
        {"shard.expert_outer_strategy", &shard.expert_outer_strategy}}) {
    require(
        !*value || ep > 1, std::string(name) + " = " + to_toml(*value) +
                               ": it is for experts that ranks share; set parallel.ep as well");
  }
  if (ep == 1) return;
  const auto key = is_set("parallel.ep", ep);
  require(
      model.from || has_experts(model),
      key + ": the model has no experts; set model.kind = \"moe\", or remove parallel.ep");
  require(
      model.from || !has_experts(model) || model.experts % ep == 0,
      key + ": it must divide " + is_set("model.experts", model.experts));
  require(
      !all.train.graph,
      "train.graph = true: with " + key +
          " the host waits for the numbers of rows that ranks exchange; set train.graph = false");
  try {
    placement_of_experts(shard);
  } catch (const std::invalid_argument& error) {
    const bool inner = shard.expert_strategy.has_value();
    if (inner || shard.expert_outer_strategy) {  // else it is the same problem as shard.strategy's
      problems.push_back(
          (inner ? "shard.expert_strategy = " + to_toml(shard.expert_strategy)
                 : "shard.expert_outer_strategy = " + to_toml(shard.expert_outer_strategy)) +
          ": " + error.what());
    }
  }
}

}  // namespace sherd
