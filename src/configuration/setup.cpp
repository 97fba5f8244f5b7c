// SPDX-License-Identifier: Apache-2.0
#include "configuration/setup.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <set>
#include <tuple>

#include "configuration/parallel_checks.h"
#include "configuration/strategies.h"
#include "configuration/to_toml.h"
#include "shard/glob.h"
#include "sherd/models/hybrid.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"
#include "sherd/models/pretrained.h"
#include "sherd/models/vlm.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"

namespace sherd {
namespace {

std::optional<c10::ScalarType> dtype_of(const std::optional<std::string>& word) {
  if (!word) return std::nullopt;
  return *word == "bf16" ? c10::kBFloat16 : *word == "fp16" ? c10::kHalf : c10::kFloat;
}

/// Of all parameters but those of products in fp8, which have rules of their own.
Precision precision_of(const PrecisionSection& section) {
  if (section.recipe) {
    auto precision = Precision::recipe(*section.recipe);
    precision.fp8 = Fp8::none;
    return precision;
  }
  Precision precision;
  precision.compute = dtype_of(section.compute);
  precision.main = dtype_of(section.main);
  precision.gradient = dtype_of(section.gradient);
  precision.reduce = dtype_of(section.reduce);
  return precision;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return matches_glob(pattern, name);
  });
}

/// The full names of all weights whose products could be in fp8.
std::vector<std::string> product_weights_of(const LanguageModel& model) {
  const auto products = model.products();
  std::vector<std::string> result;
  for (const auto& item : model.named_parameters()) {
    if (matches_any(products, item.key())) result.push_back(item.key());
  }
  return result;
}

bool matches_none(const std::string& pattern, const std::vector<std::string>& names) {
  return std::none_of(names.begin(), names.end(), [&](const std::string& name) {
    return matches_glob(pattern, name);
  });
}

void check_keep(const LanguageModel& model, const PrecisionSection& section, const char* kind) {
  const auto names = product_weights_of(model);
  for (const auto& pattern : section.keep) {
    TORCH_CHECK_VALUE(
        !matches_none(pattern, names), "[train] precision.keep has \"", pattern,
        "\", which matches no weight whose product could be in fp8: those of a model of kind \"",
        kind, "\" match ", c10::Join(", ", model.products()));
  }
}

/// Freezes the weights that model.frozen names.
void freeze(LanguageModel& model, const std::vector<std::string>& patterns) {
  const auto parameters = model.named_parameters();
  for (const auto& pattern : patterns) {
    bool found = false;
    for (const auto& item : parameters) {
      if (!matches_glob(pattern, item.key())) continue;
      found = true;
      item.value().set_requires_grad(false);
    }
    TORCH_CHECK_VALUE(
        found, "[train] model.frozen has \"", pattern, "\", which matches no weight, such as ",
        some_names(parameters.keys()));
  }
  const auto trains = [](const auto& item) { return item.value().requires_grad(); };
  TORCH_CHECK_VALUE(
      std::any_of(parameters.begin(), parameters.end(), trains),
      "[train] model.frozen = ", to_toml(patterns), ": nothing is left to train; leave some out");
}

/// Rules for those that belong to a unit.
std::vector<ParameterRule> fp8_rules_of(
    const std::set<std::string>& weights, const std::string& unit, const std::string& recipe) {
  std::vector<ParameterRule> rules;
  for (const auto& name : weights) {
    if (!unit.empty() && name.rfind(unit + ".", 0) != 0) continue;
    const auto within = unit.empty() ? name : name.substr(unit.size() + 1);
    rules.push_back({.match = within, .precision = Precision::recipe(recipe)});
  }
  return rules;
}

Recompute recompute_of(const std::string& word) {
  return word == "full"        ? Recompute::full
         : word == "selective" ? Recompute::selective
                               : Recompute::none;
}

LlamaOptions llama_of(const ModelSection& model) {
  LlamaOptions options;
  options.vocab = model.vocab;
  options.dim = model.dim;
  options.layers = model.layers;
  options.heads = model.heads;
  options.kv_heads = model.kv_heads;
  options.head_dim = model.head_dim > 0 ? model.head_dim : model.dim / model.heads;
  options.qkv_bias = model.qkv_bias;
  options.qk_norm = model.qk_norm;
  options.qk_norm_across = model.qk_norm_across;
  options.ffn = model.ffn;
  options.rope_theta = model.rope_theta;
  options.norm_eps = model.norm_eps;
  options.tie_embeddings = model.tie_embeddings;
  options.init_std = model.init_std;
  return options;
}

ExpertOptions experts_of(const ModelSection& model) {
  return {
      .count = model.experts,
      .top_k = model.top_k,
      .norm_top_k = model.norm_top_k,
      .ffn = model.expert_ffn,
      .shared_ffn = model.shared_ffn,
      .balance = model.balance.value_or(ExpertOptions{}.balance)};
}

MambaOptions mamba_of(const ModelSection& model) {
  return {
      .state = model.ssm_state,
      .head_dim = model.ssm_head_dim,
      .expand = model.ssm_expand,
      .groups = model.ssm_groups,
      .width = model.ssm_width,
      .chunk = model.ssm_chunk};
}

HybridOptions hybrid_of(const ModelSection& model, const LlamaOptions& base) {
  return {base, experts_of(model), mamba_of(model), model.pattern, model.rope_fraction};
}

void set_experts(ModelSection& model, const ExpertOptions& experts) {
  model.experts = experts.count;
  model.top_k = experts.top_k;
  model.norm_top_k = experts.norm_top_k;
  model.expert_ffn = experts.ffn;
  model.shared_ffn = experts.shared_ffn;
  model.balance = experts.balance;
}

void set_hybrid(ModelSection& model, const HybridOptions& options) {
  set_experts(model, options.experts);
  model.pattern = options.pattern;
  model.rope_fraction = options.rope_fraction;
  model.ssm_state = options.mamba.state;
  model.ssm_head_dim = options.mamba.head_dim;
  model.ssm_expand = options.mamba.expand;
  model.ssm_groups = options.mamba.groups;
  model.ssm_width = options.mamba.width;
  model.ssm_chunk = options.mamba.chunk;
}

VisionOptions vision_of(const ModelSection& model) {
  return {
      .image_size = model.image_size,
      .patch = model.patch,
      .dim = model.vision_dim,
      .layers = model.vision_layers,
      .heads = model.vision_heads,
      .ffn = usual_ffn(model.vision_dim)};
}

/// The value of model.kind.
const char* kind_of(const ModelOptions& options) {
  if (std::holds_alternative<MoeOptions>(options)) return "moe";
  return std::holds_alternative<HybridOptions>(options) ? "hybrid" : "llama";
}

/// Sets the mesh of the experts; throws, naming the key, if the model has none.
void share_experts(ModelOptions& options, const Mesh& mesh, const std::string& folder) {
  const int64_t ep = mesh.size("ep");
  auto* moe = std::get_if<MoeOptions>(&options);
  TORCH_CHECK_VALUE(
      moe, "[train] parallel.ep = ", ep, ": the model in ", folder,
      " has no experts; remove parallel.ep");
  TORCH_CHECK_VALUE(
      moe->experts.count % ep == 0, "[train] parallel.ep = ", ep, ": it must divide the ",
      moe->experts.count, " experts of the model in ", folder);
  moe->experts.mesh = mesh;
}

ModelOptions options_of_folder(const ModelSection& model) {
  auto options = read_model_options(*model.from);
  TORCH_CHECK_VALUE(
      model.kind == "llama" || model.kind == kind_of(options), "[train] model.kind = \"",
      model.kind, "\": ", *model.from, " has a model of kind \"", kind_of(options),
      "\"; remove model.kind, or choose another model.from");
  auto* moe = std::get_if<MoeOptions>(&options);
  if (moe && model.balance) moe->experts.balance = *model.balance;
  return options;
}

/// The meshes that a model makes its own, if it does.
struct ModelMeshes {
  std::optional<Mesh> sequences;
  std::optional<Mesh> experts;
};

/// Throws, naming the keys, unless ranks can share the sequences of the model in a folder.
void check_folder(const Configuration& configuration) {
  std::vector<std::string> problems;
  check_sharing(configuration, resolved(configuration.model), problems);
  TORCH_CHECK_VALUE(
      problems.empty(), "[train] ", *configuration.model.from, ": ", join(problems, "; "));
}

std::shared_ptr<LanguageModel> model_of_folder(
    const Configuration& configuration, const ModelMeshes& meshes) {
  auto options = options_of_folder(configuration.model);
  if (meshes.sequences) check_folder(configuration);
  if (meshes.experts) share_experts(options, *meshes.experts, *configuration.model.from);
  auto& base = base_of(options);
  const int64_t seq = configuration.data.seq;
  TORCH_CHECK_VALUE(
      base.sliding_window == 0 || seq <= base.sliding_window, "[model.from] ",
      *configuration.model.from, "/config.json: sliding_window = ", base.sliding_window,
      ": it is shorter than data.seq = ", seq, ", and sliding windows are not supported; set ",
      "data.seq to at most ", base.sliding_window);
  base.recompute = recompute_of(configuration.train.recompute);
  base.recompute_layers = configuration.train.recompute_layers;
  base.mesh = meshes.sequences;
  return make_model(options);
}

std::shared_ptr<LanguageModel> described_model(
    const Configuration& configuration, const ModelMeshes& meshes) {
  const auto& model = configuration.model;
  if (model.from) return model_of_folder(configuration, meshes);
  auto base = llama_of(model);
  base.recompute = recompute_of(configuration.train.recompute);
  base.recompute_layers = configuration.train.recompute_layers;
  base.mesh = meshes.sequences;
  if (model.kind == "moe") {
    MoeOptions options{base, experts_of(model)};
    options.experts.mesh = meshes.experts;
    return make_moe(options);
  }
  if (model.kind == "hybrid") {
    auto options = hybrid_of(model, base);
    options.experts.mesh = meshes.experts;
    return make_hybrid(options);
  }
  if (model.kind == "vlm") return make_vlm({base, vision_of(model)});
  return make_llama(base);
}

Documents documents_of(const std::string& word) {
  return word == "packed"     ? Documents::packed
         : word == "separate" ? Documents::separate
                              : Documents::cross;
}

/// From `begin` to `end`: the part of the file.
Dataset dataset_of(
    const Configuration& configuration,
    const std::string& path,
    const std::optional<std::string>& images,
    double begin = 0,
    double end = 1) {
  const auto& [model, data] = std::tie(configuration.model, configuration.data);
  const auto kind = data.text                ? TokenFile::Kind::bytes
                    : data.dtype == "uint16" ? TokenFile::Kind::uint16
                                             : TokenFile::Kind::uint32;
  auto tokens = std::make_unique<TokenFile>(path, kind);
  std::unique_ptr<ImageFile> seen;
  if (images) {
    const ImageFile::Options options{
        model.image_size, vision_of(model).patches(), model.image_token};
    seen = std::make_unique<ImageFile>(*images, *tokens, options);
  }
  // Of a folder's model it is known only now.
  TORCH_CHECK_VALUE(
      data.documents == "cross" || model.kind != "hybrid" ||
          model.pattern.find('M') == std::string::npos,
      "[train.data] data.documents = ", to_toml(data.documents),
      ": Mamba-2 layers take their state from one document to the next; set data.documents = "
      "\"cross\"");
  return Dataset(
      std::move(tokens), std::move(seen),
      {.seq = data.seq,
       .vocab = model.vocab,
       .documents = documents_of(data.documents),
       .begin = begin,
       .end = end});
}

Mesh mesh_of_axes(const World& world, const NamedSizes& named) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : named) axes.push_back({name, size});
  return Mesh(world, axes);
}

/// Collective; nothing without axes.
std::optional<Mesh> mesh_of_axes(const World& world, const std::optional<NamedSizes>& named) {
  if (!named) return std::nullopt;
  return mesh_of_axes(world, *named);
}

World emulated_world(const Configuration& configuration, const World& alone) {
  const auto& device = configuration.device;
  TORCH_CHECK_VALUE(
      alone.size() == 1, "[train] device.emulate = ", device.emulate, " and ", alone.size(),
      " ranks: an emulated world has one process; start it alone");
  Emulation emulation{.size = device.emulate, .device = alone.device()};
  if (device.network) {
    emulation.network = network_of(read_network(*device.network), configuration, device.emulate);
  }
  return World::emulated(emulation);
}

}  // namespace

c10::ScalarType compute_dtype_of(const PrecisionSection& section) {
  const auto precision = precision_of(section);
  return precision.autocast.value_or(precision.compute.value_or(c10::kFloat));
}

std::optional<c10::ScalarType> export_dtype_of(const Configuration& configuration) {
  if (configuration.train.export_dtype == "fp8_block") return c10::kBFloat16;
  if (configuration.train.export_dtype) return dtype_of(configuration.train.export_dtype);
  return precision_of(configuration.precision).compute;
}

std::vector<std::string> export_fp8_of(
    const Configuration& configuration, const LanguageModel& model) {
  std::vector<std::string> result;
  if (configuration.train.export_dtype != "fp8_block") return result;
  const auto products = model.products();
  for (const auto& item : model.named_parameters()) {
    const bool kept = matches_any(configuration.precision.keep, item.key());
    if (!kept && item.value().dim() == 2 && matches_any(products, item.key())) {
      result.push_back(item.key());
    }
  }
  TORCH_CHECK_VALUE(
      !result.empty(), "[train] train.export_dtype = \"fp8_block\": a model of kind \"",
      configuration.model.kind, "\" has no products that could be saved in fp8");
  return result;
}

c10::ScalarType saved_dtype_of(const Configuration& configuration) {
  const auto main = precision_of(configuration.precision).main.value_or(c10::kFloat);
  return export_dtype_of(configuration).value_or(main);
}

World world_of(const Configuration& configuration) {
  const auto& device = configuration.device;
  WorldOptions options;
  if (device.kind == "cpu") options.device = c10::kCPU;
  if (device.kind == "cuda") options.device = c10::kCUDA;
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
  };
  options.start_timeout = milliseconds(device.start_limit);
  options.operation_timeout = milliseconds(device.operation_limit);
  if (device.interface) {
    options.interface = *device.interface;
    // NCCL and MPI read theirs when they start. What a user has set for them is not changed.
    setenv("NCCL_SOCKET_IFNAME", ("=" + *device.interface).c_str(), 0);
    setenv("OMPI_MCA_btl_tcp_if_include", device.interface->c_str(), 0);
  }
  const auto world = World::from_environment(options);
  return device.emulate > 0 ? emulated_world(configuration, world) : world;
}

Network network_of(const NetworkFile& file, const Configuration& configuration, int64_t ranks) {
  auto network = network_of(file, data_axes_of(configuration, ranks));
  const auto add = [&](const std::optional<NamedSizes>& axes) {
    if (axes) network.axes.merge(network_of(file, *axes).axes);
  };
  const auto sequence = sequence_axes_of(configuration, ranks);
  add(sequence);
  add(expert_axes_of(configuration, ranks));
  const auto& parallel = configuration.parallel;
  if (parallel.cp == 1 || parallel.tp == 1) return network;
  // What ranks along tp have a part of is sharded over all ranks with the same part.
  auto lines = *sequence;
  lines.erase(lines.end() - 2);
  lines[lines.size() - 2] = {"dp_cp", lines[lines.size() - 2].second * parallel.cp};
  add(lines);
  return network;
}

Mesh mesh_of(const Configuration& configuration, const World& world) {
  return mesh_of_axes(world, data_axes_of(configuration, world.size()));
}

std::string strategy_of(const Configuration& configuration, int64_t ranks) {
  // What is registered with NCCL are buffers of gathers.
  const bool alone = ranks == 1 && !configuration.memory.symmetric;
  return alone ? "no_shard" : configuration.shard.strategy;
}

UnitOptions unit_options_of(const Configuration& configuration, const Mesh& mesh) {
  auto shard = configuration.shard;
  shard.strategy = strategy_of(configuration, mesh.world().size());
  UnitOptions options;
  options.mesh = mesh;
  options.axes = {.inner = data_axis_of(configuration), .outer = shard.outer > 1 ? "dp_outer" : ""};
  options.placement = placement_of(shard);
  options.precision = precision_of(configuration.precision);
  return options;
}

RootOptions root_options_of(const Configuration& configuration) {
  const auto& memory = configuration.memory;
  return {
      .prefetch_depth = configuration.shard.prefetch,
      .loss = configuration.train.loss == "per_token" ? Loss::per_token : Loss::mean,
      .memory = memory.kind == "eager" ? MemoryKind::eager : MemoryKind::planned,
      .symmetric = memory.symmetric};
}

void check_weights_of(const Configuration& configuration) {
  const MetaDevice meta;
  check_weights(*model_of_folder(configuration, {}), *configuration.model.from);
}

std::shared_ptr<LanguageModel> sharded_model_of(
    const Configuration& configuration, const Mesh& mesh) {
  const auto& world = mesh.world();
  const ModelMeshes meshes{
      mesh_of_axes(world, sequence_axes_of(configuration, world.size())),
      mesh_of_axes(world, expert_axes_of(configuration, world.size()))};
  const auto make = [&] {
    const MetaDevice meta;
    return described_model(configuration, meshes);
  };
  auto model = make();
  freeze(*model, configuration.model.frozen);
  // Where there are several ranks, they check it when they load it, each what it reads.
  const bool alone = mesh.world().size() == 1 || mesh.world().launcher() == Launcher::emulated;
  if (configuration.model.from && alone) check_weights(*model, *configuration.model.from);
  auto options = unit_options_of(configuration, mesh);
  options.rules = model->rules();
  for (auto& rule : options.rules) {
    const bool of_experts = rule.mesh && rule.mesh->has("edp");
    if (of_experts) rule.placement = placement_of_experts(configuration.shard);
  }
  const auto units = model->units();
  check_keep(*model, configuration.precision, configuration.model.kind.c_str());
  auto fp8 = fp8_weights_of(configuration, *model);
  const auto names = model->named_modules();
  const auto shard = [&](torch::nn::Module* module, auto apply) {
    std::string name;
    for (const auto& item : names) {
      if (item.value().get() == module) name = item.key();
    }
    auto mine = options;
    if (!fp8.empty()) {
      for (auto& rule : fp8_rules_of(fp8, name, *configuration.precision.recipe)) {
        fp8.erase(name.empty() ? rule.match : name + "." + rule.match);
        mine.rules.push_back(std::move(rule));
      }
    }
    apply(mine);
  };
  for (size_t i = 0; i < units.size(); ++i) {
    shard(units[i].get(), [&](UnitOptions& mine) {
      mine.keep_gathered =
          std::ssize(units) - static_cast<int64_t>(i) <= configuration.shard.keep_gathered;
      fully_shard(units[i], mine);
    });
  }
  shard(model.get(), [&](const UnitOptions& mine) {
    fully_shard(model, mine, root_options_of(configuration));
  });
  micro_batches(*model, configuration.data.micro_batches);
  return model;
}

std::shared_ptr<LanguageModel> model_of(const Configuration& configuration, const Mesh& mesh) {
  auto model = sharded_model_of(configuration, mesh);
  const auto values = [&](const std::string& name, at::IntArrayRef shape) {
    return model->initial_values(name, shape);
  };
  initialise(*model, {.seed = static_cast<uint64_t>(configuration.train.seed), .values = values});
  if (configuration.model.from) load_weights(*model, *configuration.model.from);
  return model;
}

std::set<std::string> fp8_weights_of(
    const Configuration& configuration, const LanguageModel& model) {
  const auto& [recipe, keep] =
      std::tie(configuration.precision.recipe, configuration.precision.keep);
  std::set<std::string> result;
  if (!recipe || Precision::recipe(*recipe).fp8 == Fp8::none) return result;
  for (const auto& name : product_weights_of(model)) {
    if (!matches_any(keep, name)) result.insert(name);
  }
  return result;
}

void check_keep(const Configuration& configuration) {
  if (configuration.precision.keep.empty()) return;
  const MetaDevice meta;
  check_keep(
      *described_model(configuration, {}), configuration.precision,
      configuration.model.kind.c_str());
}

void drop_keep_without_weights(Configuration& configuration) {
  if (configuration.precision.keep.empty()) return;
  const MetaDevice meta;
  const auto names = product_weights_of(*described_model(configuration, {}));
  std::erase_if(configuration.precision.keep, [&](const std::string& pattern) {
    return matches_none(pattern, names);
  });
}

ModelSection resolved(ModelSection model) {
  if (model.from) {
    auto options_of_any_kind = options_of_folder(model);
    const auto& options = base_of(options_of_any_kind);
    model.kind = kind_of(options_of_any_kind);
    model.dim = options.dim;
    model.layers = options.layers;
    model.heads = options.heads;
    model.kv_heads = options.kv_heads;
    const bool usual = options.heads * options.head_dim == options.dim;
    model.head_dim = usual ? 0 : options.head_dim;
    model.qkv_bias = options.qkv_bias;
    model.qk_norm = options.qk_norm;
    model.qk_norm_across = options.qk_norm_across;
    model.ffn = options.ffn;
    model.vocab = options.vocab;
    model.rope_theta = options.rope_theta;
    model.norm_eps = options.norm_eps;
    model.tie_embeddings = options.tie_embeddings;
    model.init_std = options.init_std;
    if (const auto* moe = std::get_if<MoeOptions>(&options_of_any_kind)) {
      set_experts(model, moe->experts);
    }
    if (const auto* hybrid = std::get_if<HybridOptions>(&options_of_any_kind)) {
      set_hybrid(model, *hybrid);
    }
    return model;
  }
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.ffn == 0) model.ffn = usual_ffn(model.dim);
  if (model.expert_ffn == 0) model.expert_ffn = model.ffn;
  return model;
}

Dataset training_data_of(const Configuration& configuration) {
  const auto& data = configuration.data;
  return dataset_of(
      configuration, data.text ? *data.text : *data.tokens, data.images, 0, 1 - data.val_fraction);
}

std::optional<Dataset> validation_data_of(const Configuration& configuration) {
  const auto& data = configuration.data;
  if (data.val_fraction > 0) {
    return dataset_of(
        configuration, data.text ? *data.text : *data.tokens, {}, 1 - data.val_fraction, 1);
  }
  if (!data.validation) return std::nullopt;
  return dataset_of(configuration, *data.validation, data.validation_images);
}

}  // namespace sherd
