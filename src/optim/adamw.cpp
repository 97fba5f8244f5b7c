// SPDX-License-Identifier: Apache-2.0
#include "sherd/optim/adamw.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>

#include "device/profile_range.h"
#include "kernels/adamw.h"
#include "kernels/measure.h"
#include "shard/glob.h"
#include "shard/outside_inference.h"
#include "shard/sharded_model.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {
namespace {

AdamWSettings settings_of(const std::string& name, const AdamWOptions& options) {
  AdamWSettings settings{
      .beta1 = options.beta1,
      .beta2 = options.beta2,
      .eps = options.eps,
      .weight_decay = options.weight_decay};
  for (const auto& rule : options.rules) {
    if (!matches_glob(rule.match, name)) continue;
    settings.lr_factor = rule.lr_factor.value_or(settings.lr_factor);
    settings.beta1 = rule.beta1.value_or(settings.beta1);
    settings.beta2 = rule.beta2.value_or(settings.beta2);
    settings.eps = rule.eps.value_or(settings.eps);
    settings.weight_decay = rule.weight_decay.value_or(settings.weight_decay);
  }
  return settings;
}

/// Throws if a rule matches no parameter, frozen ones included: most often a typo.
void check_rules_match(const AdamWOptions& options, const ShardedModel& model) {
  std::vector<std::string> names;
  for (const auto& shard : model.shards()) names.push_back(shard.name);
  for (const auto& rule : options.rules) {
    const bool matched = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return matches_glob(rule.match, name);
    });
    TORCH_CHECK_VALUE(
        matched, "[optim] AdamW: the rule '", rule.match, "' matches no parameter of '",
        model.name(), "', whose parameters are ", some_names(names),
        ": correct the pattern or remove the rule. Patterns match full names");
  }
}

void check(const std::string& key, double value, bool allowed, const char* range) {
  TORCH_CHECK_VALUE(allowed, "[optim] AdamW: ", key, " is ", value, "; it must be ", range);
}

void check_fraction(const std::string& key, double value) {
  check(key, value, value >= 0 && value < 1, "0 or more and below 1");
}

void check_not_negative(const std::string& key, double value) {
  check(key, value, value >= 0, "0 or more");
}

void check(const AdamWOptions& options) {
  check_not_negative("lr", options.lr);
  check_fraction("beta1", options.beta1);
  check_fraction("beta2", options.beta2);
  check_not_negative("eps", options.eps);
  check_not_negative("weight_decay", options.weight_decay);
  for (const auto& rule : options.rules) {
    const auto key = [&](const char* name) {
      return c10::str(name, " of the rule '", rule.match, "'");
    };
    if (rule.lr_factor) check_not_negative(key("lr_factor"), *rule.lr_factor);
    if (rule.beta1) check_fraction(key("beta1"), *rule.beta1);
    if (rule.beta2) check_fraction(key("beta2"), *rule.beta2);
    if (rule.eps) check_not_negative(key("eps"), *rule.eps);
    if (rule.weight_decay) check_not_negative(key("weight_decay"), *rule.weight_decay);
  }
  check("max_norm", options.max_norm, options.max_norm >= 0, "0 (never clips) or more");
  TORCH_CHECK_VALUE(
      options.states == c10::kFloat || options.states == c10::kBFloat16,
      "[optim] AdamW: states is ", options.states, "; it must be fp32 or bf16");
  if (!options.scaling) return;
  const auto& scaling = *options.scaling;
  check("scaling.initial", scaling.initial, scaling.initial > 0, "above 0");
  check("scaling.growth", scaling.growth, scaling.growth >= 1, "1 or more");
  check(
      "scaling.backoff", scaling.backoff, scaling.backoff > 0 && scaling.backoff < 1, "in (0, 1)");
  check(
      "scaling.interval", static_cast<double>(scaling.interval), scaling.interval >= 1,
      "1 or more");
}

}  // namespace

struct AdamW::State {
  ~State() {
    const auto alive_still = runtime.lock();
    if (alive_still && options.scaling) ShardedModel(alive_still).expect_overflow(false);
  }
  std::weak_ptr<Runtime> runtime;
  AdamWOptions options;
  std::string range_name;
  ControlRules rules;
  // Of each trainable parameter.
  std::vector<std::string> names;
  std::vector<AdamWTensors> tensors;
  std::vector<bool> frozen;
  std::vector<double> frozen_at;
  std::vector<at::Tensor> storages;
  std::vector<Moments> moments;
  AdamWPass pass;
  Measurement measurement;  // of the gradients that this rank counts
  at::Tensor fields;        // the control
  at::Tensor sums;          // of squares: one for each of those gradients
  at::Tensor total;         // of all ranks

  ShardedModel model() const {
    auto alive = runtime.lock();
    TORCH_CHECK(alive, "[optim] the model of this optimizer is gone");
    return ShardedModel(std::move(alive));
  }
  at::Tensor field(control::Field number) const { return fields.narrow(0, number, 1); }
  double value(control::Field number) const { return field(number).item<double>(); }
  void prepare(const ShardedModel& model);
  void follow_frozen(const ShardedModel& model);
  void build_pass();
  void set_missed(const Progress& progress);
  void measure(const World& world) const;
  static void check_tokens(const ShardedModel& model, std::optional<int64_t> tokens);
  void sum_tokens(const ShardedModel& model, int64_t tokens) const;
  void check_finite(const ShardedModel& model) const;
};

/// Prepares all that a step needs, once.
void AdamW::State::prepare(const ShardedModel& model) {
  const auto shards = trainable_only(model.shards());
  const auto first = allocate_like_main(shards, options.states);
  const auto second = allocate_like_main(shards, options.states);
  for (const auto* buffers : {&first, &second}) {
    storages.insert(storages.end(), buffers->storages.begin(), buffers->storages.end());
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    moments.push_back({shards[i].name, first.pieces[i], second.pieces[i]});
  }
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto& shard = shards[i];
    names.push_back(shard.name);
    tensors.push_back(
        {shard.main, shard.gradient, first.pieces[i], second.pieces[i], shard.model_weight,
         settings_of(shard.name, options)});
    if (shard.counted) gradients.push_back(shard.gradient);
  }
  frozen.assign(tensors.size(), false);
  frozen_at.assign(tensors.size(), 0);
  build_pass();
  measurement = Measurement(gradients);
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(model.world().device());
  sums = at::zeros({std::ssize(gradients)}, numbers);
  total = at::zeros({1}, numbers);
  fields = at::zeros({control::count}, numbers);
}

/// Parameters that were frozen or made trainable since the last step: the table of work is built
/// anew. As with torch's AdamW, a frozen one keeps weight, moments and its number of updates.
void AdamW::State::follow_frozen(const ShardedModel& model) {
  const auto& now = model.frozen();
  if (now == frozen) return;
  TORCH_CHECK(
      !model.capturing(), "[optim] parameters of '", model.name(),
      "' were frozen or made trainable since the last step: run a step before capturing one");
  const double updates = value(control::step);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (now[i] && !frozen[i]) frozen_at[i] = updates;
    if (!now[i] && frozen[i]) tensors[i].settings.missed += updates - frozen_at[i];
  }
  frozen = now;
  build_pass();
}

void AdamW::State::set_missed(const Progress& progress) {
  bool changes = false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = progress.missed.find(names[i]);
    const auto missed = found == progress.missed.end() ? 0.0 : static_cast<double>(found->second);
    changes = changes || missed != tensors[i].settings.missed;
    tensors[i].settings.missed = missed;
    frozen_at[i] = static_cast<double>(progress.updates);
  }
  if (!changes) return;
  build_pass();
  model().note_new_update();
}

void AdamW::State::build_pass() {
  const OutsideInference normal;
  std::vector<AdamWTensors> trained;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!frozen[i]) trained.push_back(tensors[i]);
  }
  pass = AdamWPass(trained);
}

/// The sum of squares of all gradients: each rank adds those that it counts, the world the ranks.
void AdamW::State::measure(const World& world) const {
  measurement.run(sums);
  auto result = total;
  at::sum_out(result, sums, {0}, /*keepdim=*/true);
  world.communicator().all_reduce(result, Reduction::sum()).wait();
}

void AdamW::State::check_tokens(const ShardedModel& model, std::optional<int64_t> tokens) {
  const bool per_token = model.loss() == Loss::per_token;
  TORCH_CHECK_VALUE(
      per_token == tokens.has_value(), "[optim] the loss of '", model.name(), "' is ",
      per_token
          ? "per token: pass this rank's tokens, optimizer.step({.tokens = …})"
          : "not per token: set RootOptions::loss = sherd::Loss::per_token, or give no tokens");
  TORCH_CHECK_VALUE(
      !tokens || *tokens >= 0, "[optim] the step of '", model.name(), "' has ", *tokens, " tokens");
}

/// The number of tokens of all ranks, on the device.
void AdamW::State::sum_tokens(const ShardedModel& model, int64_t tokens) const {
  const auto own = field(control::own_tokens);
  if (model.capturing()) {
    model.note_tokens_captured();  // each replay reads what set_tokens wrote before it
  } else {
    own.fill_(static_cast<double>(tokens));
  }
  auto sum = field(control::tokens);
  sum.copy_(own);
  model.world().communicator().all_reduce(sum, Reduction::sum()).wait();
}

AdamW::AdamW(ModuleRef model, const AdamWOptions& options) : state_(std::make_unique<State>()) {
  check(options);
  const OutsideInference normal;
  const ShardedModel sharded(*model, "AdamW");
  check_rules_match(options, sharded);
  state_->runtime = sharded.weak();
  state_->options = options;
  state_->range_name = "update " + sharded.name();
  state_->rules.max_norm = options.max_norm;
  if (options.scaling) {
    state_->rules.scaled = true;
    sharded.expect_overflow(true);
    state_->rules.growth = options.scaling->growth;
    state_->rules.backoff = options.scaling->backoff;
    state_->rules.interval = static_cast<double>(options.scaling->interval);
  }
  state_->prepare(sharded);
  state_->field(control::lr).fill_(options.lr);
  state_->field(control::tokens).fill_(1);
  state_->field(control::scale).fill_(options.scaling ? options.scaling->initial : 1);
}

AdamW::~AdamW() = default;
AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;

void AdamW::step(const StepOptions& options) {
  const OutsideInference normal;
  const auto model = state_->model();
  // This rank's mistakes first: after the next check, the others would wait for it.
  State::check_tokens(model, options.tokens);
  model.check_complete("optimizer.step()");
  state_->follow_frozen(model);
  const ProfileScope scope(state_->range_name);
  if (options.tokens) state_->sum_tokens(model, *options.tokens);
  state_->measure(model.world());
  advance_control(state_->fields, state_->total, state_->rules);
  state_->pass.run(state_->fields);
  model.publish_update();
  if (!state_->options.scaling && model.world().device().is_cpu()) state_->check_finite(model);
}

/// Throws if the norm is not finite, which all ranks see; the watch of the rank that has the
/// elements names the parameter. Collective.
void AdamW::State::check_finite(const ShardedModel& model) const {
  if (value(control::skip) == 0) return;
  TORCH_CHECK_VALUE(
      value(control::tokens) != 0, "[optim] step ", model.steps(), " of '", model.name(),
      "' has no tokens on any rank: no weight was changed");
  model.report_findings(": no weight was changed");
  throw NotFiniteError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(
          "[optim] the gradient of '", model.name(), "' has no finite norm in step ", model.steps(),
          ": no weight was changed"),
      {});
}

void AdamW::set_lr(double lr) {
  check("lr", lr, lr >= 0, "0 or more");
  state_->options.lr = lr;
  state_->field(control::lr).fill_(lr);
}

void AdamW::set_tokens(int64_t tokens) {
  const auto model = state_->model();
  TORCH_CHECK_VALUE(
      tokens >= 0, "[optim] the step of '", model.name(), "' has ", tokens, " tokens");
  state_->field(control::own_tokens).fill_(static_cast<double>(tokens));
  model.note_tokens_given();
}

at::Tensor AdamW::scale(const at::Tensor& loss) const {
  if (!state_->options.scaling) return loss;
  return loss * state_->field(control::scale).squeeze(0).to(loss.scalar_type());
}

double AdamW::lr() const {
  return state_->value(control::lr);
}
int64_t AdamW::updates() const {
  return static_cast<int64_t>(state_->value(control::step));
}
double AdamW::loss_scale() const {
  return state_->value(control::scale);
}
double AdamW::gradient_norm() const {
  return state_->value(control::norm);
}
at::Tensor AdamW::gradient_norm_on_device() const {
  return state_->field(control::norm).clone();
}
AdamW::Progress AdamW::progress() const {
  Progress result{
      updates(), state_->options.scaling ? loss_scale() : 0,
      static_cast<int64_t>(state_->value(control::healthy))};
  for (size_t i = 0; i < state_->names.size(); ++i) {
    const bool frozen = state_->frozen[i];
    const double missed = state_->tensors[i].settings.missed +
                          (frozen ? static_cast<double>(result.updates) - state_->frozen_at[i] : 0);
    if (missed > 0) result.missed[state_->names[i]] = static_cast<int64_t>(missed);
  }
  return result;
}
void AdamW::set_progress(const Progress& progress) {
  TORCH_CHECK_VALUE(
      progress.updates >= 0 && progress.healthy >= 0, "[optim] AdamW can't have made ",
      progress.updates, " updates, ", progress.healthy, " since its scale was changed");
  TORCH_CHECK_VALUE(
      progress.loss_scale >= 0 && std::isfinite(progress.loss_scale),
      "[optim] AdamW can't go on with a loss scale of ", progress.loss_scale);
  state_->set_missed(progress);
  state_->field(control::step).fill_(static_cast<double>(progress.updates));
  state_->field(control::healthy).fill_(static_cast<double>(progress.healthy));
  if (state_->options.scaling && progress.loss_scale > 0) {
    state_->field(control::scale).fill_(progress.loss_scale);
  }
}
const std::vector<AdamW::Moments>& AdamW::moments() const {
  return state_->moments;
}
OptimizerBytes AdamW::allocated_bytes() const {
  const auto& state = *state_;
  OptimizerBytes bytes;
  for (const auto& storage : state.storages)
    bytes.moments += static_cast<int64_t>(storage.nbytes());
  bytes.control =
      state.pass.bytes() + state.measurement.bytes() +
      static_cast<int64_t>(state.fields.nbytes() + state.sums.nbytes() + state.total.nbytes());
  return bytes;
}

}  // namespace sherd
