// SPDX-License-Identifier: Apache-2.0
#include "configuration/checks.h"

#include <stdexcept>
#include <utility>

#include "configuration/byte_size.h"
#include "configuration/parallel_checks.h"
#include "configuration/strategies.h"
#include "configuration/to_toml.h"
#include "sherd/shard/precision.h"

namespace sherd {
namespace {

std::string is(const char* name, int64_t value) {
  return std::string(name) + " = " + std::to_string(value);
}

/// require(condition, problem).
template <class Require>
void check_model(const ModelSection& model, const Require& require) {
  const auto divides = [&](const char* name, int64_t part, const char* of, int64_t whole) {
    require(whole % part == 0, is(name, part) + ": it must divide " + is(of, whole));
  };
  if (model.from) {
    require(
        model.kind != "vlm",
        "model.kind = " + to_toml(model.kind) +
            ": model.from works with kinds \"llama\", \"moe\" and \"hybrid\"; remove model.kind");
    return;
  }
  if (model.head_dim == 0) {
    divides("model.heads", model.heads, "model.dim", model.dim);
    require(
        model.dim % model.heads != 0 || model.dim / model.heads % 2 == 0,
        is("model.heads", model.heads) +
            ": a head's width, dim / heads, must be even for rotary positions; it is " +
            std::to_string(model.dim / model.heads));
  }
  require(
      model.head_dim % 2 == 0,
      is("model.head_dim", model.head_dim) + ": it must be even for rotary positions");
  require(
      !model.qkv_bias || !model.qk_norm,
      "model.qk_norm = true: model.qkv_bias is set as well; set one of them");
  require(
      !model.qk_norm_across || model.qk_norm,
      "model.qk_norm_across = true: set model.qk_norm = true as well, or remove it");
  if (model.kv_heads != 0) divides("model.kv_heads", model.kv_heads, "model.heads", model.heads);
  if (model.kind == "moe" || model.kind == "hybrid") {
    require(
        model.top_k <= model.experts, is("model.top_k", model.top_k) + ": it must be at most " +
                                          is("model.experts", model.experts));
  }
  const int64_t width = model.expert_ffn > 0 ? model.expert_ffn : model.ffn;
  if (has_experts(model)) {
    for (const auto& [name, size] :
         {std::pair("model.dim", model.dim),
          {model.expert_ffn > 0 ? "model.expert_ffn" : "model.ffn", width}}) {
      require(size % 8 == 0, is(name, size) + ": with experts it must be a multiple of 8");
    }
  }
  if (model.kind == "hybrid") {
    require(
        !model.pattern.empty() && model.pattern.find_first_not_of("M*-E") == std::string::npos,
        "model.pattern = " + to_toml(model.pattern) +
            ": use only the letters M (Mamba-2), * (attention), - (feed-forward), E (experts)");
    const int64_t inner = model.ssm_expand * model.dim;
    divides("model.ssm_head_dim", model.ssm_head_dim, "model.ssm_expand · model.dim", inner);
    divides(
        "model.ssm_groups", model.ssm_groups, "Mamba-2's heads, ssm_expand · dim / ssm_head_dim",
        inner / model.ssm_head_dim);
    const int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.dim / model.heads;
    const auto rotated = static_cast<int64_t>(static_cast<double>(head_dim) * model.rope_fraction);
    require(
        rotated > 0 && rotated % 2 == 0,
        "model.rope_fraction = " + to_toml(model.rope_fraction) +
            ": it must give an even number of the dims of a head, of which there are " +
            std::to_string(head_dim));
  }
  require(
      model.rope_fraction == 1 || model.kind == "hybrid",
      "model.rope_fraction = " + to_toml(model.rope_fraction) +
          ": only models of kind \"hybrid\" have it; remove it, or set model.kind");
  if (model.kind == "vlm") {
    divides("model.patch", model.patch, "model.image_size", model.image_size);
    divides("model.vision_heads", model.vision_heads, "model.vision_dim", model.vision_dim);
    require(
        model.image_token < model.vocab, is("model.image_token", model.image_token) +
                                             ": it must be below " +
                                             is("model.vocab", model.vocab));
  }
}

/// require(condition, problem).
template <class Require>
void check_documents(const Configuration& all, const Require& require) {
  const auto& documents = all.data.documents;
  if (documents == "cross") return;
  const auto refuse_if = [&](bool given, const std::string& why) {
    require(
        !given, "data.documents = " + to_toml(documents) + ": " + why +
                    ", or set data.documents = \"cross\"");
  };
  refuse_if(
      all.parallel.cp > 1,
      "ranks that have chunks of a sequence do not know documents; set parallel.cp = 1");
  refuse_if(
      all.train.graph,
      "the documents of each step differ, and a graph repeats one; set train.graph = false");
  refuse_if(
      all.model.kind == "hybrid" && !all.model.from &&
          all.model.pattern.find('M') != std::string::npos,
      "Mamba-2 layers take their state from one document to the next; use a model.pattern without "
      "M");
  refuse_if(all.model.kind == "vlm", "data with images have none; use another model.kind");
}

/// require(condition, problem).
template <class Require>
void check_samples(const Configuration& all, const Require& require) {
  if (all.train.sample_every == 0) return;
  const auto refuse_if = [&](bool given, const char* why) {
    require(!given, is("train.sample_every", all.train.sample_every) + ": " + why);
  };
  refuse_if(
      all.train.sample_prompts.empty(),
      "there is no text to continue; set train.sample_prompts = [\"Once upon a time\"]");
  refuse_if(
      all.parallel.cp > 1 || all.parallel.tp > 1,
      "ranks that share sequences write no samples; remove it, or set parallel.cp and parallel.tp "
      "to 1");
  refuse_if(
      all.train.graph,
      "graphs and samples do not go together; remove it, or set train.graph = "
      "false");
  refuse_if(all.model.kind == "vlm", "models of kind \"vlm\" write no samples; remove it");
}

}  // namespace

void check_together(const Configuration& all, std::vector<std::string>& problems) {
  const auto require = [&](bool fine, const std::string& text) {
    if (!fine) problems.push_back(text);
  };
  const auto& model = all.model;
  const auto& data = all.data;
  const auto& precision = all.precision;
  const auto& optim = all.optim;
  const auto& train = all.train;
  const auto& device = all.device;
  check_model(model, require);
  require(
      data.tokens.has_value() != data.text.has_value(),
      data.tokens
          ? "data.text = " + to_toml(data.text) + ": give data.tokens or data.text, not both"
          : "data: give data.tokens = \"file.bin\" or data.text = \"file.txt\"");
  const auto images = [&](const char* key, const auto& value, bool wanted) {
    require(
        !value || model.kind == "vlm",
        std::string(key) + " = " + to_toml(value) + ": only models of kind \"vlm\" take images");
    require(
        value || !wanted || model.kind != "vlm",
        std::string(key) + ": a model of kind \"vlm\" needs it");
  };
  images("data.images", data.images, true);
  images("data.validation_images", data.validation_images, data.validation.has_value());
  require(
      device.emulate == 0 || device.ranks == 1, is("device.emulate", device.emulate) +
                                                    ": an emulated world is one process, but " +
                                                    is("device.ranks", device.ranks));
  require(
      !device.network || device.emulate > 0,
      "device.network = " + to_toml(device.network) +
          ": it is for emulated ranks only; set device.emulate too");
  const auto& budget = all.memory.budget;
  if (!budget.empty() && budget != "auto") {
    require(
        parse_bytes(budget).has_value(),
        "memory.budget = " + to_toml(budget) +
            ": it must be a number and a unit, such as \"64GiB\" or \"80GB\", \"auto\", or \"\"");
  }
  require(
      !all.memory.symmetric || all.memory.kind == "planned",
      "memory.symmetric = true: registered memory needs fixed addresses; set memory.kind = "
      "\"planned\"");
  try {
    placement_of(all.shard);
  } catch (const std::invalid_argument& error) {
    problems.push_back(
        "shard.outer_strategy = " + to_toml(all.shard.outer_strategy) + ": " + error.what());
  }
  if (!model.from) check_sharing(all, model, problems);  // else when it is read
  check_experts(all, problems);
  const bool parts = precision.compute || precision.main || precision.gradient || precision.reduce;
  require(
      !precision.recipe || !parts,
      "precision.recipe = " + to_toml(precision.recipe) +
          ": a recipe sets compute, main, gradient and reduce; remove those keys, or the recipe");
  const bool fp8 = precision.recipe && Precision::recipe(*precision.recipe).fp8 != Fp8::none;
  require(
      precision.keep.empty() || fp8,
      "precision.keep = " + to_toml(precision.keep) +
          ": it is for recipes of fp8; remove it, or set precision.recipe = \"fp8\"");
  require(
      optim.warmup <= train.steps,
      is("optim.warmup", optim.warmup) + ": it must be at most " + is("train.steps", train.steps));
  require(
      optim.min_lr <= optim.lr, "optim.min_lr = " + to_toml(optim.min_lr) +
                                    ": it must be at most optim.lr = " + to_toml(optim.lr));
  require(
      !optim.decay_steps || optim.schedule == "wsd",
      "optim.decay_steps = " + to_toml(optim.decay_steps) +
          ": it is for optim.schedule = \"wsd\"; remove it, or set the schedule");
  require(
      optim.decay_steps.value_or(0) + optim.warmup <= train.steps || optim.warmup > train.steps,
      "optim.decay_steps = " + to_toml(optim.decay_steps) + ": with " +
          is("optim.warmup", optim.warmup) + " it must be at most " +
          is("train.steps", train.steps));
  require(
      !train.keep_best || data.validation || data.val_fraction > 0,
      "train.keep_best = true: there is no validation data; set data.validation or "
      "data.val_fraction");
  require(
      train.watch != "ranks" || all.memory.kind == "planned",
      "train.watch = \"ranks\": checking gradients before the reduction needs planned memory; set "
      "memory.kind = \"planned\"");
  require(
      train.bad_norm == 0 || train.on_bad_step == "rewind",
      "train.bad_norm = " + to_toml(train.bad_norm) +
          ": such a step has changed the weights when it is noticed; set train.on_bad_step = "
          "\"rewind\", or remove it");
  require(
      !device.interface || !device.interface->empty(),
      "device.interface = \"\": give the name of a network interface, or remove it");
  require(
      train.validate_every == 0 || data.validation || data.val_fraction > 0,
      is("train.validate_every", train.validate_every) +
          ": there is no validation data; set data.validation or data.val_fraction");
  require(
      data.val_fraction == 0 || !data.validation,
      "data.val_fraction = " + to_toml(data.val_fraction) +
          ": data.validation is set as well; set one of them");
  check_documents(all, require);
  check_samples(all, require);
}

}  // namespace sherd
