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
  bool path = false;   ///< it is the path of a file or folder
};

inline Key meaning(const char* text) {
  return {.meaning = text};
}
inline Key at_least(double least, const char* text) {
  return {.meaning = text, .least = least};
}
/// A size of at most 2^bits: larger ones are mistakes, and products of several would overflow.
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
      path("a Hugging Face folder (config.json and safetensors) to start from; it then sets the "
           "keys below"));
  visit("kind", s.kind, one_of({"llama", "moe", "hybrid", "vlm"}, "kind of model"));
  visit("dim", s.dim, up_to_bits(20, 1, "width of the model"));
  visit("layers", s.layers, up_to_bits(16, 1, "number of layers"));
  visit(
      "heads", s.heads,
      up_to_bits(16, 1, "number of attention heads; divides dim, unless head_dim is set"));
  visit(
      "kv_heads", s.kv_heads,
      up_to_bits(16, 0, "number of key and value heads; divides heads; 0: same as heads"));
  visit(
      "head_dim", s.head_dim,
      up_to_bits(16, 0, "width of an attention head, even; 0: dim / heads"));
  visit(
      "qkv_bias", s.qkv_bias,
      meaning("biases for queries, keys and values, as in Qwen2; not with qk_norm"));
  visit(
      "qk_norm", s.qk_norm,
      meaning("an RMSNorm for each head of the queries and keys, as in Qwen3; not with qkv_bias"));
  visit(
      "qk_norm_across", s.qk_norm_across,
      meaning("with qk_norm: one RMSNorm across all heads of the queries and one of the keys, as "
              "in OLMoE"));
  visit(
      "ffn", s.ffn,
      up_to_bits(
          24, 0,
          "hidden width of the feed-forward layers; 0: 8/3 dim, rounded up to a multiple of 64"));
  visit("vocab", s.vocab, up_to_bits(31, 2, "size of the vocabulary"));
  visit("rope_theta", s.rope_theta, above(0, "base of the rotary position embeddings"));
  visit("norm_eps", s.norm_eps, above(0, "epsilon of the RMSNorms"));
  visit(
      "tie_embeddings", s.tie_embeddings, meaning("the output head shares the embedding's weight"));
  visit("init_std", s.init_std, at_least(0, "standard deviation of the initial weights"));
  visit(
      "frozen", s.frozen,
      meaning("weights that are not trained: patterns of their names, such as [\"embedding.*\", "
              "\"layer0.*\"]"));
  visit("experts", s.experts, up_to_bits(16, 1, "moe, hybrid: experts per layer"));
  visit("top_k", s.top_k, up_to_bits(16, 1, "moe, hybrid: experts per token"));
  visit(
      "norm_top_k", s.norm_top_k,
      meaning("moe, hybrid: the weights of a token's experts are divided by their sum"));
  visit(
      "expert_ffn", s.expert_ffn,
      up_to_bits(24, 0, "moe, hybrid: hidden width of an expert; 0: ffn"));
  visit(
      "shared_ffn", s.shared_ffn,
      up_to_bits(24, 0, "moe, hybrid: hidden width of the shared expert; 0: no shared expert"));
  visit(
      "balance", s.balance,
      at_least(
          0,
          "moe, hybrid: weight of the load-balancing loss; default: 0.01, or with from what its "
          "config.json says"));
  visit(
      "pattern", s.pattern,
      meaning("hybrid: one letter per layer, repeated if shorter than layers: M Mamba-2, * "
              "attention, - feed-forward, E experts"));
  visit(
      "rope_fraction", s.rope_fraction,
      Key{.meaning = "hybrid: part of each attention head that has rotary position embeddings",
          .least = 0,
          .most = 1,
          .above = true});
  visit("ssm_state", s.ssm_state, up_to_bits(16, 1, "hybrid: Mamba-2 state size"));
  visit(
      "ssm_head_dim", s.ssm_head_dim,
      up_to_bits(16, 1, "hybrid: width of a Mamba-2 head; divides ssm_expand · dim"));
  visit(
      "ssm_groups", s.ssm_groups,
      up_to_bits(16, 1, "hybrid: groups of Mamba-2 heads that share B and C"));
  visit(
      "ssm_expand", s.ssm_expand,
      up_to_bits(8, 1, "hybrid: inner width of Mamba-2, as a multiple of dim"));
  visit(
      "ssm_width", s.ssm_width,
      up_to_bits(3, 1, "hybrid: tokens that Mamba-2's convolution covers"));
  visit("ssm_chunk", s.ssm_chunk, up_to_bits(20, 1, "hybrid: tokens per Mamba-2 chunk"));
  visit(
      "image_size", s.image_size, up_to_bits(14, 1, "vlm: width and height of an image in pixels"));
  visit(
      "patch", s.patch,
      up_to_bits(14, 1, "vlm: width and height of a patch in pixels; divides image_size"));
  visit("vision_dim", s.vision_dim, up_to_bits(20, 1, "vlm: width of the vision tower"));
  visit("vision_layers", s.vision_layers, up_to_bits(16, 1, "vlm: layers of the vision tower"));
  visit(
      "vision_heads", s.vision_heads,
      up_to_bits(16, 1, "vlm: attention heads of the vision tower; divides vision_dim"));
  visit(
      "image_token", s.image_token,
      up_to_bits(31, 0, "vlm: the placeholder token, one for each patch of an image"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, DataSection>
void keys(Section& s, Visitor&& visit) {
  visit("tokens", s.tokens, path("a file of token numbers; give this or text"));
  visit("text", s.text, path("a file whose bytes are the tokens; give this or tokens"));
  visit("dtype", s.dtype, one_of({"uint16", "uint32"}, "dtype of the numbers in tokens"));
  visit("seq", s.seq, up_to_bits(28, 1, "sequence length in tokens"));
  visit("batch", s.batch, up_to_bits(20, 1, "sequences per rank and micro-batch"));
  visit(
      "micro_batches", s.micro_batches,
      up_to_bits(16, 1, "micro-batches per step (gradient accumulation)"));
  visit(
      "shuffle", s.shuffle,
      meaning("shuffle the sequences anew for each pass over the file; the order is the same for "
              "any number of ranks"));
  visit(
      "documents", s.documents,
      one_of(
          {"cross", "separate", "packed"},
          "what tokens see of the documents in a sequence: all before them, or only their own "
          "(separate); packed: whole documents, as many as fit into a sequence, see only "
          "themselves"));
  visit("validation", s.validation, path("validation data: a file like tokens or text"));
  visit(
      "val_fraction", s.val_fraction,
      Key{.meaning =
              "part of the data, from its end, that is not trained on but is validation data",
          .least = 0,
          .most = 1,
          .below = true});
  visit(
      "tokenizer", s.tokenizer,
      path("a tokenizer.json, or its folder, to copy into every checkpoint; default: that of "
           "model.from"));
  visit(
      "images", s.images,
      path("vlm: a file of images, image_size x image_size x 3 bytes each, in the order of "
           "the text"));
  visit("validation_images", s.validation_images, path("vlm: the images of validation"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, ShardSection>
void keys(Section& s, Visitor&& visit) {
  const std::vector<std::string> strategies{
      "no_shard", "optim", "optim_grads", "optim_grads_params"};
  visit(
      "strategy", s.strategy,
      one_of(strategies, "what is sharded over the ranks; a single rank shards nothing"));
  visit(
      "outer", s.outer,
      up_to_bits(
          16, 1,
          "number of groups of ranks: the outer axis (HSDP, HFSDP); without an outer_strategy each "
          "has a whole copy of the model; divides the ranks"));
  visit(
      "outer_strategy", s.outer_strategy,
      one_of(strategies, "what is sharded between those groups"));
  visit(
      "expert_strategy", s.expert_strategy,
      one_of(
          strategies,
          "with parallel.ep: what of the experts is sharded over the ranks that have the same "
          "ones; "
          "default: strategy"));
  visit(
      "expert_outer_strategy", s.expert_outer_strategy,
      one_of(
          strategies,
          "with parallel.ep: what of the experts is sharded between the groups; default: "
          "outer_strategy"));
  visit(
      "prefetch", s.prefetch,
      up_to_bits(16, 0, "prefetch depth: number of units that are gathered ahead"));
  visit(
      "keep_gathered", s.keep_gathered,
      up_to_bits(
          16, 0,
          "number of last units that stay gathered from forward to backward (no reshard after "
          "forward): fewer gathers, more memory"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, ParallelSection>
void keys(Section& s, Visitor&& visit) {
  visit(
      "cp", s.cp,
      up_to_bits(
          16, 1,
          "ranks that each have chunks of the same sequences (context parallelism); 2 · cp · tp "
          "divides data.seq (docs/parallel.md)"));
  visit(
      "tp", s.tp,
      up_to_bits(
          16, 1,
          "ranks that each have a part of the rows of the same sequences, of the heads and of the "
          "width of feed-forwards (tensor and sequence parallelism); divides heads, kv_heads, ffn "
          "and data.seq"));
  visit(
      "ep", s.ep,
      up_to_bits(
          16, 1,
          "moe, hybrid: ranks that share the experts of each layer (expert parallelism); divides "
          "the experts and the ranks of a group (docs/parallel.md)"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, MemorySection>
void keys(Section& s, Visitor&& visit) {
  visit(
      "kind", s.kind,
      one_of(
          {"planned", "eager"},
          "memory of gathered parameters and full gradients. planned: one arena with fixed "
          "addresses; eager: torch's caching allocator"));
  visit(
      "budget", s.budget,
      meaning("limit for all memory on the device, such as \"64GiB\"; \"auto\": the free memory. "
              "shard.prefetch, shard.keep_gathered, train.recompute and train.recompute_layers are "
              "then chosen for the shortest step that fits; \"\": no limit"));
  visit(
      "symmetric", s.symmetric,
      meaning("allocate the arena with NCCL's allocator and register it with its communicators "
              "before the first step"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, PrecisionSection>
void keys(Section& s, Visitor&& visit) {
  const std::vector<std::string> dtypes{"fp32", "bf16", "fp16"};
  visit(
      "recipe", s.recipe,
      one_of(
          {"fp32", "bf16_o1", "bf16_o2", "bf16_o3", "fp16", "fp8", "fp8_wgrad16", "fp8_block",
           "mxfp8"},
          "a named combination of the keys below (docs/numerics.md); with those of fp8 the "
          "products "
          "of the layers are in 8 bits"));
  visit(
      "compute", s.compute,
      one_of(dtypes, "dtype that the model computes with and that is all-gathered"));
  visit(
      "main", s.main,
      one_of(dtypes, "dtype of the main weights (master weights), which the optimizer updates"));
  visit("gradient", s.gradient, one_of(dtypes, "dtype in which gradients accumulate"));
  visit("reduce", s.reduce, one_of(dtypes, "dtype in which gradients are reduced"));
  visit(
      "keep", s.keep,
      meaning("weights whose products stay in the compute dtype with a recipe of fp8: patterns of "
              "their names, such as [\"layer0.*\", \"*.down.weight\"]"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, OptimSection>
void keys(Section& s, Visitor&& visit) {
  visit("name", s.name, one_of({"adamw"}, "the optimizer"));
  visit("lr", s.lr, at_least(0, "highest learning rate"));
  visit(
      "betas", s.betas,
      {.meaning = "decay rates of the two moments", .least = 0, .most = 1, .below = true});
  visit("eps", s.eps, at_least(0, "epsilon, added to the root of the second moment"));
  visit("weight_decay", s.weight_decay, at_least(0, "weight decay, decoupled from the gradient"));
  visit(
      "weight_decay_on", s.weight_decay_on,
      one_of(
          {"all", "matrices"},
          "weights that weight_decay applies to: all, or those with two or more dims"));
  visit("max_norm", s.max_norm, above(0, "clip gradients to this norm; default: no clipping"));
  visit(
      "schedule", s.schedule,
      one_of(
          {"constant", "linear", "cosine", "wsd"},
          "learning-rate schedule after the warm-up; linear and cosine reach min_lr one step after "
          "the last; wsd is constant, then falls linearly during decay_steps"));
  visit(
      "warmup", s.warmup,
      up_to_bits(48, 0, "warm-up steps, in which the learning rate rises to lr"));
  visit("min_lr", s.min_lr, at_least(0, "learning rate at the end of the schedule; at most lr"));
  visit(
      "decay_steps", s.decay_steps,
      up_to_bits(
          48, 1,
          "wsd: the last steps, in which the learning rate falls; default: a tenth of steps"));
  visit(
      "on_extend", s.on_extend,
      one_of(
          {"restart", "stretch"},
          "when a finished run gets more steps; restart: the schedule begins anew after the last "
          "one, with its warm-up; stretch: it is that of all steps, as if it had been from the "
          "start"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, TrainSection>
void keys(Section& s, Visitor&& visit) {
  visit("steps", s.steps, up_to_bits(48, 1, "number of updates"));
  visit("seed", s.seed, at_least(0, "seed of initial weights and shuffling"));
  visit("out", s.out, meaning("folder for the results"));
  visit(
      "save_every", s.save_every,
      at_least(0, "steps between checkpoints; 0: only at the end; default: 1000"));
  visit("keep", s.keep, at_least(0, "number of newest checkpoints to keep; 0: all"));
  visit(
      "snapshot_every", s.snapshot_every,
      at_least(
          0,
          "steps between snapshots: checkpoints in the memory of the machine (/dev/shm), from "
          "which "
          "ranks that are started again go on; 0: none"));
  visit(
      "resume", s.resume,
      meaning("\"auto\": continue from the newest complete checkpoint in out, if data, seed and "
              "model.from are the same; \"none\"; or a checkpoint's folder, whatever has changed"));
  visit(
      "export_dtype", s.export_dtype,
      one_of(
          {"fp32", "bf16", "fp16", "fp8_block"},
          "dtype of the model in a checkpoint; default: the compute dtype. fp8_block: products in "
          "e4m3 with a scale for each 128 x 128 elements, as DeepSeek's models, all else in bf16"));
  visit(
      "save", s.save,
      one_of(
          {"auto", "foreground", "background"},
          "how checkpoints are written; auto: in the background on a GPU, else in the foreground"));
  visit(
      "recompute", s.recompute,
      one_of(
          {"none", "full", "selective"},
          "activations that are recomputed in the backward (activation checkpointing)"));
  visit(
      "recompute_layers", s.recompute_layers,
      up_to_bits(16, 0, "number of layers that recompute, from the first on; 0: all"));
  visit(
      "validate_every", s.validate_every,
      at_least(0, "steps between validations; 0: only after the last"));
  visit(
      "sample_every", s.sample_every,
      at_least(0, "steps between samples of what the model writes after sample_prompts; 0: none"));
  visit(
      "sample_prompts", s.sample_prompts,
      meaning("the texts that samples continue, such as [\"Once upon a time\"]"));
  visit("sample_tokens", s.sample_tokens, up_to_bits(20, 1, "number of tokens of a sample"));
  visit(
      "log_every", s.log_every,
      at_least(
          0,
          "steps between progress lines, at which the host reads results from the device; "
          "metrics.jsonl has every step in any case; 0: every step on CPUs, on GPUs the first ten "
          "and then every tenth"));
  visit(
      "watch", s.watch,
      one_of(
          {"on", "ranks", "off"},
          "report gradients that are not finite by parameter and micro-batch; ranks: also by rank, "
          "which reads all gradients once more (docs/diagnostics.md)"));
  visit(
      "on_bad_step", s.on_bad_step,
      one_of(
          {"stop", "skip", "rewind"},
          "after a step whose gradients are not finite: stop, with the last good state saved; "
          "skip: go on without its update; rewind: go back to the newest checkpoint and leave out "
          "the step's samples"));
  visit(
      "bad_norm", s.bad_norm,
      at_least(
          0,
          "with on_bad_step = \"rewind\": a step is bad, too, if the norm of its gradients is "
          "above this multiple of the mean norm of the good steps before it, at least 10 of them; "
          "0: off"));
  visit(
      "flight_recorder", s.flight_recorder,
      up_to_bits(
          24, 0,
          "number of last instructions and collectives that each rank keeps in out/flight, 64 "
          "bytes "
          "each, for sherd blame; 0: off (docs/diagnostics.md)"));
  visit(
      "verify_replicas", s.verify_replicas,
      at_least(
          0,
          "steps between comparisons of the weights that several ranks hold alike; a difference is "
          "an error that names parameter, rank and host; 0: off (docs/diagnostics.md)"));
  visit(
      "loss", s.loss,
      one_of(
          {"mean", "per_token"},
          "loss is the mean over the step's tokens; mean: divided in each rank's loss; per_token: "
          "divided after the reduction"));
  visit(
      "graph", s.graph,
      meaning(
          "capture a whole step as one CUDA graph and replay it; an error if that is impossible"));
  visit(
      "keep_best", s.keep_best,
      meaning("also save out/best after each validation whose loss is the lowest so far"));
  visit("tensorboard", s.tensorboard, meaning("write TensorBoard event files"));
  visit(
      "on_event", s.on_event,
      meaning("a command, started by the first rank with sh, that gets a line of JSON on its "
              "standard input for each event: start, step, validation, checkpoint, end "
              "(docs/training.md); \"\": none"));
}

template <class Section, class Visitor>
requires std::same_as<std::remove_const_t<Section>, DeviceSection>
void keys(Section& s, Visitor&& visit) {
  visit("kind", s.kind, one_of({"auto", "cpu", "cuda"}, "auto: cuda if there is a GPU"));
  visit(
      "ranks", s.ranks,
      up_to_bits(
          16, 1,
          "ranks to start on this machine, if no launcher has started any; --ranks overrides it"));
  visit(
      "emulate", s.emulate,
      up_to_bits(
          16, 0,
          "run as one rank of an emulated world of this size, to measure memory and speed; losses "
          "are meaningless; 0: off"));
  visit(
      "network", s.network,
      path("network description for emulated ranks (networks/, sherd network), which sets the time "
           "of collectives"));
  visit(
      "interface", s.interface,
      meaning("network interface, such as \"eth1\", over which ranks of several machines "
              "communicate (tcp, NCCL, MPI); default: their own choice"));
  const auto seconds = [](const char* text) {
    return Key{.meaning = text, .least = 0, .most = 1e9, .above = true};
  };
  visit("start_limit", s.start_limit, seconds("seconds to wait for all ranks at the start"));
  visit(
      "operation_limit", s.operation_limit,
      seconds("seconds that an operation may wait for other ranks before it is an error"));
}

/// Calls visitor(name, section) for each section.
template <class Any, class Visitor>
requires std::same_as<std::remove_const_t<Any>, Configuration>
void sections(Any& all, Visitor&& visit) {
  visit("model", all.model);
  visit("data", all.data);
  visit("shard", all.shard);
  visit("parallel", all.parallel);
  visit("memory", all.memory);
  visit("precision", all.precision);
  visit("optim", all.optim);
  visit("train", all.train);
  visit("device", all.device);
}

}  // namespace sherd
