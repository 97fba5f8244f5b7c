// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"

namespace sherd {

// The sections of a run's TOML file. `sherd train --help` (configuration_help()) describes every
// key with its default and range; they are defined in src/configuration/keys.h.

/// Section [model]: what the model is.
struct ModelSection {
  std::optional<std::string> from{};
  std::string kind = "llama";
  int64_t dim = 256;
  int64_t layers = 8;
  int64_t heads = 8;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool qk_norm_across = false;
  int64_t ffn = 0;
  int64_t vocab = 256;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  bool tie_embeddings = false;
  double init_std = 0.02;
  std::vector<std::string> frozen{};
  // for moe, and for hybrid with experts in its pattern
  int64_t experts = 8;
  int64_t top_k = 2;
  bool norm_top_k = true;
  int64_t expert_ffn = 0;
  int64_t shared_ffn = 0;
  std::optional<double> balance{};
  // for hybrid
  std::string pattern = "M-*E";
  double rope_fraction = 1;
  int64_t ssm_state = 64;
  int64_t ssm_head_dim = 64;
  int64_t ssm_groups = 1;
  int64_t ssm_expand = 2;
  int64_t ssm_width = 4;
  int64_t ssm_chunk = 128;
  // for vlm
  int64_t image_size = 32;
  int64_t patch = 8;
  int64_t vision_dim = 128;
  int64_t vision_layers = 2;
  int64_t vision_heads = 4;
  int64_t image_token = 0;
};

/// Section [data]: what the model is trained on.
struct DataSection {
  std::optional<std::string> tokens{};
  std::optional<std::string> text{};
  std::string dtype = "uint16";
  int64_t seq = 128;
  int64_t batch = 1;
  int64_t micro_batches = 1;
  bool shuffle = true;
  std::string documents = "cross";
  std::optional<std::string> validation{};
  double val_fraction = 0;
  std::optional<std::string> tokenizer{};
  std::optional<std::string> images{};
  std::optional<std::string> validation_images{};
};

/// Section [shard]: how the model is sharded.
struct ShardSection {
  std::string strategy = "optim_grads_params";
  int64_t outer = 1;
  std::string outer_strategy = "no_shard";
  std::optional<std::string> expert_strategy{};
  std::optional<std::string> expert_outer_strategy{};
  int64_t prefetch = 1;
  int64_t keep_gathered = 0;
};

/// Section [parallel]: what ranks compute together, besides data parallelism.
struct ParallelSection {
  int64_t cp = 1;  // ranks = outer · dp · cp · tp, tp varying fastest
  int64_t tp = 1;
  int64_t ep = 1;
};

/// Section [memory]: where gathered parameters are stored, and how much memory a run may use.
struct MemorySection {
  std::string kind = "planned";
  std::string budget;
  bool symmetric = false;
};

/// Section [precision]: dtypes, by recipe or one by one.
struct PrecisionSection {
  std::optional<std::string> recipe{};
  std::optional<std::string> compute{};
  std::optional<std::string> main{};
  std::optional<std::string> gradient{};
  std::optional<std::string> reduce{};
  std::vector<std::string> keep{};
};

/// Section [optim]: the optimizer and its learning rate.
struct OptimSection {
  std::string name = "adamw";
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  std::string weight_decay_on = "all";
  std::optional<double> max_norm{};
  std::string schedule = "cosine";
  int64_t warmup = 0;
  double min_lr = 0;
  std::optional<int64_t> decay_steps{};
  std::string on_extend = "restart";
};

/// Section [train]: the training loop, its checkpoints and its output.
struct TrainSection {
  int64_t steps = 100;
  int64_t seed = 1;
  std::string out = "run";
  std::optional<int64_t> save_every{};
  int64_t keep = 0;
  int64_t snapshot_every = 0;
  std::string resume = "auto";
  std::optional<std::string> export_dtype{};
  std::string save = "auto";
  std::string recompute = "none";
  int64_t recompute_layers = 0;
  int64_t validate_every = 0;
  int64_t sample_every = 0;
  std::vector<std::string> sample_prompts{};
  int64_t sample_tokens = 64;
  int64_t log_every = 0;
  std::string watch = "on";
  std::string on_bad_step = "stop";
  double bad_norm = 0;
  int64_t flight_recorder = 16384;
  int64_t verify_replicas = 0;
  std::string loss = "mean";
  bool graph = false;
  bool keep_best = false;
  bool tensorboard = false;
  std::string on_event;
};

/// Section [device]: devices, ranks and time limits.
struct DeviceSection {
  std::string kind = "auto";
  int64_t ranks = 1;
  int64_t emulate = 0;
  std::optional<std::string> network{};
  std::optional<std::string> interface {};
  double start_limit = 60;
  double operation_limit = 600;
};

/// The configuration of a run.
struct Configuration {
  ModelSection model{};
  DataSection data{};
  ShardSection shard{};
  ParallelSection parallel{};
  MemorySection memory{};
  PrecisionSection precision{};
  OptimSection optim{};
  TrainSection train{};
  DeviceSection device{};
  std::string source{};  ///< the file it was read from
};

/// The error for a wrong configuration file: a line for each problem, with place, key, value and
/// remedy.
class SHERD_API ConfigurationError : public std::exception {
 public:
  explicit ConfigurationError(std::vector<std::string> problems);
  const char* what() const noexcept override { return text_.c_str(); }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::vector<std::string> problems_;
  std::string text_;
};

/// Reads a TOML file. `overrides`, each "section.key=value", replace what the file has. Paths in
/// the file are relative to its folder, paths in overrides to the current folder. Throws a
/// ConfigurationError with all problems, unknown keys included; for a key that was renamed it has
/// the new name.
SHERD_API Configuration
read_configuration(const std::string& path, const std::vector<std::string>& overrides = {});
/// Returns the configuration as TOML, with every key that has a value.
SHERD_API std::string to_text(const Configuration& configuration);
/// Returns a description of every key: default, meaning and range.
SHERD_API std::string configuration_help();

}  // namespace sherd
