// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <limits>
#include <string>
#include <vector>

#include "configuration/configuration.h"

// Every key of a configuration, once: `keys(section, visitor)` calls
// visitor(name, value, Key{meaning, range}) for each.
namespace sherd {

struct Key {
  const char* meaning = "";
  std::vector<std::string> one_of{};
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above = false;  ///< the least itself is not allowed
  bool below = false;  ///< nor the most
  bool path = false;   ///< of a file or folder
};

inline Key meaning(const char* text) {
  return {.meaning = text};
}
inline Key at_least(double least, const char* text) {
  return {.meaning = text, .least = least};
}
/// Sizes: more than 2^bits of it nobody has, and the products of them stay numbers.
inline Key up_to_bits(int bits, double least, const char* text) {
  return {.meaning = text, .least = least, .most = static_cast<double>(int64_t{1} << bits)};
}
inline Key above(double least, const char* text) {
  return {.meaning = text, .least = least, .above = true};
}
inline Key between(double least, double most, const char* text) {
  return {.meaning = text, .least = least, .most = most};
}
inline Key one_of(std::vector<std::string> words, const char* text) {
  return {.meaning = text, .one_of = std::move(words)};
}
inline Key path(const char* text) {
  return {.meaning = text, .path = true};
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, ModelSection>
void keys(Section& s, Visitor&& visit) {
  visit(
      "from", s.from,
      path("a Hugging Face folder (config.json and safetensors) to begin from; the keys below are "
           "then its own"));
  visit("kind", s.kind, one_of({"llama", "moe", "hybrid", "vlm"}, "what the model is"));
  visit("dim", s.dim, up_to_bits(20, 1, "width of the model"));
  visit("layers", s.layers, up_to_bits(16, 1, "number of layers"));
  visit("heads", s.heads, up_to_bits(16, 1, "heads of the attention; they divide dim"));
  visit(
      "kv_heads", s.kv_heads,
      up_to_bits(16, 0, "heads of keys and values; they divide heads; 0: as many"));
  visit(
      "ffn", s.ffn,
      up_to_bits(24, 0, "width inside the feed-forward layers; 0: 8/3 dim, rounded up to 64"));
  visit("vocab", s.vocab, up_to_bits(31, 2, "size of the vocabulary"));
  visit("rope_theta", s.rope_theta, above(0, "base of the rotary positions"));
  visit("norm_eps", s.norm_eps, above(0, "epsilon of the norms"));
  visit("tie_embeddings", s.tie_embeddings, meaning("the output head is the embedding"));
  visit("init_std", s.init_std, at_least(0, "deviation of the initial weights"));
  visit("experts", s.experts, up_to_bits(16, 1, "moe, hybrid: experts of a layer"));
  visit("top_k", s.top_k, up_to_bits(16, 1, "moe, hybrid: experts that a token takes"));
  visit(
      "expert_ffn", s.expert_ffn, up_to_bits(24, 0, "moe, hybrid: width inside an expert; 0: ffn"));
  visit(
      "shared_ffn", s.shared_ffn,
      up_to_bits(24, 0, "moe, hybrid: width of the expert that every token takes too; 0: none"));
  visit(
      "balance", s.balance,
      at_least(0, "moe, hybrid: weight of the loss that wants all experts equally busy"));
  visit(
      "pattern", s.pattern,
      meaning("hybrid: a letter per layer, again from the start where it is short: M Mamba-2, "
              "* attention, - feed-forward, E experts"));
  visit("ssm_state", s.ssm_state, up_to_bits(16, 1, "hybrid: numbers of state per dim of a head"));
  visit(
      "ssm_head_dim", s.ssm_head_dim,
      up_to_bits(16, 1, "hybrid: width of a Mamba-2 head; divides 2 dim"));
  visit(
      "ssm_groups", s.ssm_groups,
      up_to_bits(16, 1, "hybrid: groups of Mamba-2 heads that write and read alike"));
  visit(
      "ssm_chunk", s.ssm_chunk, up_to_bits(20, 1, "hybrid: tokens that Mamba-2 computes at once"));
  visit("image_size", s.image_size, up_to_bits(14, 1, "vlm: pixels of an image's side"));
  visit("patch", s.patch, up_to_bits(14, 1, "vlm: pixels of a patch's side; divides image_size"));
  visit("vision_dim", s.vision_dim, up_to_bits(20, 1, "vlm: width of the vision tower"));
  visit("vision_layers", s.vision_layers, up_to_bits(16, 1, "vlm: layers of the vision tower"));
  visit(
      "vision_heads", s.vision_heads, up_to_bits(16, 1, "vlm: its heads; they divide vision_dim"));
  visit(
      "image_token", s.image_token,
      up_to_bits(31, 0, "vlm: the token that stands in the text once for each patch of an image"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, DataSection>
void keys(Section& s, Visitor&& visit) {
  visit("tokens", s.tokens, path("a file of token numbers; this or text"));
  visit("text", s.text, path("a file whose bytes are the tokens; this or tokens"));
  visit("dtype", s.dtype, one_of({"uint16", "uint32"}, "of the numbers in tokens"));
  visit("seq", s.seq, up_to_bits(28, 1, "tokens of a sequence"));
  visit("batch", s.batch, up_to_bits(20, 1, "sequences per rank and micro-batch"));
  visit("micro_batches", s.micro_batches, up_to_bits(16, 1, "of a step"));
  visit(
      "shuffle", s.shuffle,
      meaning("another order of the sequences in each pass over the file, the same for any number "
              "of ranks"));
  visit("validation", s.validation, path("a file like tokens or text, to validate with"));
  visit(
      "tokenizer", s.tokenizer,
      path("a tokenizer.json, or a folder with one, that is copied into every checkpoint; absent: "
           "that of model.from"));
  visit(
      "images", s.images,
      path("vlm: a file of images, image_size x image_size x 3 bytes each, in the order in which "
           "they stand in the text"));
  visit("validation_images", s.validation_images, path("vlm: those of validation"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, ShardSection>
void keys(Section& s, Visitor&& visit) {
  const std::vector<std::string> strategies{
      "no_shard", "optim", "optim_grads", "optim_grads_params"};
  visit(
      "strategy", s.strategy,
      one_of(strategies, "what is sharded over the ranks; nothing where there is one"));
  visit(
      "outer", s.outer,
      up_to_bits(
          16, 1,
          "groups of ranks that hold the model once each (HSDP, HFSDP); they divide the ranks"));
  visit(
      "outer_strategy", s.outer_strategy,
      one_of(strategies, "what is sharded between those groups"));
  visit("prefetch", s.prefetch, up_to_bits(16, 0, "units that are gathered ahead"));
  visit(
      "keep_gathered", s.keep_gathered,
      up_to_bits(
          16, 0,
          "last units that stay gathered from forward to backward: fewer gathers, more memory"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, MemorySection>
void keys(Section& s, Visitor&& visit) {
  visit(
      "kind", s.kind,
      one_of(
          {"planned", "eager"},
          "of gathered parameters and full gradients: in one arena at fixed addresses, or wherever "
          "torch's allocator puts them each time"));
  visit(
      "budget", s.budget,
      meaning("what all may take on the device, such as \"64GiB\"; \"auto\": what is free there. "
              "shard.prefetch, shard.keep_gathered, train.recompute and train.recompute_layers are "
              "then chosen for the shortest step that fits; \"\": no limit"));
  visit(
      "symmetric", s.symmetric,
      meaning("the arena is NCCL's own memory, registered with its communicators before the first "
              "step"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, PrecisionSection>
void keys(Section& s, Visitor&& visit) {
  const std::vector<std::string> dtypes{"fp32", "bf16", "fp16"};
  visit(
      "recipe", s.recipe,
      one_of(
          {"fp32", "bf16_o1", "bf16_o2", "bf16_o3", "fp16"},
          "all of the below by one name (docs/numerics.md)"));
  visit("compute", s.compute, one_of(dtypes, "dtype that the model computes with"));
  visit("main", s.main, one_of(dtypes, "dtype that the optimizer updates"));
  visit("gradient", s.gradient, one_of(dtypes, "dtype that gradients add up in"));
  visit("reduce", s.reduce, one_of(dtypes, "dtype that gradients travel in"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, OptimSection>
void keys(Section& s, Visitor&& visit) {
  visit("name", s.name, one_of({"adamw"}, "the optimizer"));
  visit("lr", s.lr, at_least(0, "rate, at its highest"));
  visit(
      "betas", s.betas,
      {.meaning = "decay of the two moments", .least = 0, .most = 1, .below = true});
  visit("eps", s.eps, at_least(0, "added to the root of the second moment"));
  visit("weight_decay", s.weight_decay, at_least(0, "pulls weights towards 0"));
  visit(
      "decay", s.decay,
      one_of(
          {"all", "matrices"},
          "what weight_decay is of: all weights, or those of two dims or more"));
  visit("clip", s.clip, above(0, "largest norm of the gradients; absent: any"));
  visit(
      "schedule", s.schedule,
      one_of(
          {"constant", "linear", "cosine"},
          "of the rate, after the warm-up; down to 0 one step after the last"));
  visit("warmup", s.warmup, up_to_bits(48, 0, "steps in which the rate rises to lr"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, TrainSection>
void keys(Section& s, Visitor&& visit) {
  visit("steps", s.steps, up_to_bits(48, 1, "number of updates"));
  visit("seed", s.seed, at_least(0, "of initial weights and shuffling"));
  visit("out", s.out, meaning("folder of the results"));
  visit(
      "save_every", s.save_every,
      at_least(0, "steps between checkpoints; 0: only at the end; absent: 1000"));
  visit("keep", s.keep, at_least(0, "newest checkpoints that stay; 0: all"));
  visit(
      "resume", s.resume,
      meaning("\"auto\": from the newest whole checkpoint in out, if data, seed and model.from are "
              "still the same; \"none\"; or a checkpoint's folder, whatever has changed"));
  visit(
      "export_dtype", s.export_dtype,
      one_of(
          {"fp32", "bf16", "fp16"},
          "of the model in a checkpoint, as others read it; absent: as it computes"));
  visit(
      "save", s.save,
      one_of(
          {"auto", "foreground", "background"},
          "auto: on a GPU checkpoints are written while training goes on, from a copy on the "
          "host"));
  visit(
      "recompute", s.recompute,
      one_of({"none", "full", "selective"}, "activations that are computed again in the backward"));
  visit(
      "recompute_layers", s.recompute_layers,
      up_to_bits(16, 0, "the first so many layers do so; 0: all"));
  visit(
      "validate_every", s.validate_every,
      at_least(0, "steps between validations; 0: only after the last"));
  visit(
      "log_every", s.log_every,
      at_least(
          0,
          "steps between two lines of progress: only then the host reads what the device has "
          "computed; metrics.jsonl gets every step all the same; 0: every step on CPUs, on GPUs "
          "the first ten and then every tenth"));
  visit(
      "watch", s.watch,
      one_of(
          {"on", "ranks", "off"},
          "gradients that are not finite are named by parameter and micro-batch; ranks: by rank, "
          "too, which reads all gradients once more (docs/diagnostics.md)"));
  visit(
      "loss", s.loss,
      one_of(
          {"mean", "per_token"},
          "mean over the step's tokens, divided beforehand or after all ranks' tokens are "
          "counted"));
  visit(
      "graph", s.graph,
      meaning("on a GPU a whole step is captured as one CUDA graph and replayed; where that can't "
              "be, it is an error"));
  visit("tensorboard", s.tensorboard, meaning("event files beside the results"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, DeviceSection>
void keys(Section& s, Visitor&& visit) {
  visit("kind", s.kind, one_of({"auto", "cpu", "cuda"}, "auto: cuda where there is one"));
  visit(
      "ranks", s.ranks,
      up_to_bits(
          16, 1, "ranks to start on this machine where no launcher has; --ranks comes first"));
  visit(
      "emulate", s.emulate,
      up_to_bits(
          16, 0,
          "to try out memory and speed: run alone as one rank of a world of so many; its losses "
          "mean "
          "nothing; 0: don't"));
  visit(
      "network", s.network,
      path("emulated ranks: a described network (networks/, sherd network) whose time collectives "
           "take"));
  const auto seconds = [](const char* text) {
    return Key{.meaning = text, .least = 0, .most = 1e9, .above = true};
  };
  visit("start_limit", s.start_limit, seconds("seconds in which all ranks must have arrived"));
  visit(
      "operation_limit", s.operation_limit,
      seconds("seconds that ranks wait for each other in one operation before it is an error"));
}

/// visitor(name, section) for each section.
template <class Any, class Visitor>
requires std::same_as<std::remove_const_t<Any>, Configuration>
void sections(Any& all, Visitor&& visit) {
  visit("model", all.model);
  visit("data", all.data);
  visit("shard", all.shard);
  visit("memory", all.memory);
  visit("precision", all.precision);
  visit("optim", all.optim);
  visit("train", all.train);
  visit("device", all.device);
}

}  // namespace sherd
