// SPDX-License-Identifier: Apache-2.0
#include "sherd/optim/adamw.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>

#include "kernels/adamw.h"
#include "kernels/measure.h"
#include "shard/findings.h"
#include "shard/glob.h"
#include "shard/outside_inference.h"
#include "shard/runtime/runtime.h"
#include "sherd/shard/diagnostics.h"

namespace sherd {
namespace {

AdamWSettings settings_of(const std::string& name, const AdamWOptions& options) {
  AdamWSettings settings{1, options.beta1, options.beta2, options.epsilon, options.decay};
  for (const auto& rule : options.rules) {
    if (!matches_glob(rule.match, name)) continue;
    settings.rate_factor = rule.rate_factor.value_or(settings.rate_factor);
    settings.beta1 = rule.beta1.value_or(settings.beta1);
    settings.beta2 = rule.beta2.value_or(settings.beta2);
    settings.epsilon = rule.epsilon.value_or(settings.epsilon);
    settings.decay = rule.decay.value_or(settings.decay);
  }
  return settings;
}

void check(const char* key, double value, bool allowed, const char* range) {
  TORCH_CHECK_VALUE(allowed, "[optim] AdamW: ", key, " is ", value, "; it must be ", range);
}

void check(const AdamWOptions& options) {
  const auto fraction = [](double value) { return value >= 0 && value < 1; };
  check("rate", options.rate, options.rate >= 0, "0 or more");
  check("beta1", options.beta1, fraction(options.beta1), "0 or more and below 1");
  check("beta2", options.beta2, fraction(options.beta2), "0 or more and below 1");
  check("epsilon", options.epsilon, options.epsilon >= 0, "0 or more");
  check("decay", options.decay, options.decay >= 0, "0 or more");
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

/// Gradients whose squares are summed over the same ranks.
struct NormDomain {
  std::vector<Communicator*> over;
  int64_t begin = 0;  // of its parameters, among all
  int64_t end = 0;
};

struct AdamW::State {
  ~State() {
    const auto alive_still = runtime.lock();
    if (alive_still && options.scaling) alive_still->parts().watch.expect_overflow(false);
  }
  std::weak_ptr<Runtime> runtime;
  AdamWOptions options;
  std::string range_name;
  ControlRules rules;
  std::vector<std::string> names;  // of the parameters, sorted by domain
  std::vector<AdamWTensors> tensors;
  std::vector<size_t> order;  // of each, its place among the moments
  std::vector<bool> frozen;   // in the order of moments
  std::vector<double> frozen_at;
  std::vector<at::Tensor> storages;
  std::vector<Moments> moments;
  AdamWPass pass;
  Measurement measurement;
  at::Tensor fields;  // the control
  at::Tensor sums;    // of squares: one per parameter
  at::Tensor totals;  // one per domain
  std::vector<NormDomain> domains;

  std::shared_ptr<Runtime> alive() const {
    auto result = runtime.lock();
    TORCH_CHECK(result, "[optim] the model of this optimizer is gone");
    return result;
  }
  at::Tensor field(control::Field number) const { return fields.narrow(0, number, 1); }
  double value(control::Field number) const { return field(number).item<double>(); }
  void take(const Runtime& from);
  void follow(const Runtime& from);
  void build_pass();
  void set_missed(const Progress& progress);
  void measure() const;
  void take_tokens(Runtime& from, std::optional<int64_t> tokens) const;
  void check_finite(Runtime& from) const;
};

/// All that a step needs, prepared once.
void AdamW::State::take(const Runtime& from) {
  struct Member {
    std::string name;
    AdamWTensors tensors;
    std::vector<Communicator*> over;
    size_t number = 0;
  };
  std::vector<Member> members;
  for (const auto* unit : from.units()) {
    for (const auto& group : unit->groups()) {
      const auto& traits = group->traits();
      if (!traits.trainable) continue;
      auto first = group->allocate_like_main(options.states);
      auto second = group->allocate_like_main(options.states);
      std::vector<Communicator*> over;
      for (const auto& axis : traits.norm_axes()) over.push_back(&traits.mesh.communicator(axis));
      for (size_t i = 0; i < group->size(); ++i) {
        auto name = from.units().full_name(*unit, group->name(i));
        const auto settings = settings_of(name, options);
        moments.push_back({name, first.pieces[i], second.pieces[i]});
        members.push_back(
            {std::move(name),
             {group->main_pieces()[i], group->gradient_pieces()[i], first.pieces[i],
              second.pieces[i], group->model_piece(i), settings},
             over,
             members.size()});
      }
      storages.push_back(std::move(first.storage));
      storages.push_back(std::move(second.storage));
    }
  }
  std::vector<at::Tensor> gradients;
  for (const auto& member : members) {
    const auto known = std::any_of(domains.begin(), domains.end(), [&](const NormDomain& domain) {
      return domain.over == member.over;
    });
    if (known) continue;
    const auto begin = std::ssize(names);
    for (const auto& other : members) {
      if (other.over != member.over) continue;
      names.push_back(other.name);
      tensors.push_back(other.tensors);
      order.push_back(other.number);
      gradients.push_back(other.tensors.gradient);
    }
    domains.push_back({member.over, begin, std::ssize(names)});
  }
  frozen.assign(tensors.size(), false);
  frozen_at.assign(tensors.size(), 0);
  build_pass();
  measurement = Measurement(gradients);
  const auto numbers = at::TensorOptions().dtype(at::kDouble).device(from.world().device());
  sums = at::zeros({std::ssize(names)}, numbers);
  totals = at::zeros({std::ssize(domains)}, numbers);
  fields = at::zeros({control::count}, numbers);
}

/// Parameters that were frozen or made trainable since the last step: the table of work is built
/// anew. As with torch's AdamW, a frozen one keeps weight, moments and its number of updates.
void AdamW::State::follow(const Runtime& from) {
  const auto& now = from.state().frozen;
  if (now == frozen) return;
  TORCH_CHECK(
      !from.graph().capturing, "[optim] parameters of '", from.root().name(),
      "' were frozen or made trainable since the last step: run a step before capturing one");
  const double updates = value(control::step);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t number = order[i];
    if (now[number] && !frozen[number]) frozen_at[i] = updates;
    if (!now[number] && frozen[number]) tensors[i].settings.missed += updates - frozen_at[i];
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
  ++alive()->graph().update_version;
}

void AdamW::State::build_pass() {
  const OutsideInference normal;
  std::vector<AdamWTensors> trained;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!frozen[order[i]]) trained.push_back(tensors[i]);
  }
  pass = AdamWPass(trained);
}

/// The sum of squares of each domain, over its ranks.
void AdamW::State::measure() const {
  measurement.run(sums);
  for (size_t i = 0; i < domains.size(); ++i) {
    const auto& [over, begin, end] = domains[i];
    auto total = totals.narrow(0, static_cast<int64_t>(i), 1);
    at::sum_out(total, sums.narrow(0, begin, end - begin), {0}, /*keepdim=*/true);
    for (auto* communicator : over) communicator->all_reduce(total, Reduction::sum()).wait();
  }
}

void AdamW::State::take_tokens(Runtime& from, std::optional<int64_t> tokens) const {
  const auto& root = from.root();
  const bool per_token = root.options().loss == Loss::per_token;
  TORCH_CHECK_VALUE(
      per_token == tokens.has_value(), "[optim] the loss of '", root.name(), "' is ",
      per_token ? "per token: say how many this rank had with optimizer.step({.tokens = …})"
                : "not per token: set options.loss = sherd::Loss::per_token, or give no tokens");
  if (!per_token) return;
  TORCH_CHECK_VALUE(
      *tokens >= 0, "[optim] the step of '", root.name(), "' has ", *tokens, " tokens");
  const auto own = field(control::own_tokens);
  if (from.graph().capturing) {
    from.graph().tokens_captured = true;  // each replay reads what set_tokens wrote before it
  } else {
    own.fill_(static_cast<double>(*tokens));
  }
  auto sum = field(control::tokens);
  sum.copy_(own);
  for (const auto& axis : {root.axes().inner, root.axes().outer}) {
    if (!axis.empty()) root.mesh().communicator(axis).all_reduce(sum, Reduction::sum()).wait();
  }
}

AdamW::AdamW(ModuleRef model, const AdamWOptions& options) : state_(std::make_unique<State>()) {
  check(options);
  const OutsideInference normal;
  const auto runtime = Runtime::of_model(*model, "AdamW");
  state_->runtime = runtime;
  state_->options = options;
  state_->range_name = "update " + runtime->root().name();
  state_->rules.max_norm = options.max_norm;
  if (options.scaling) {
    state_->rules.scaled = true;
    runtime->parts().watch.expect_overflow(true);
    state_->rules.growth = options.scaling->growth;
    state_->rules.backoff = options.scaling->backoff;
    state_->rules.interval = static_cast<double>(options.scaling->interval);
  }
  state_->take(*runtime);
  state_->field(control::rate).fill_(options.rate);
  state_->field(control::tokens).fill_(1);
  state_->field(control::scale).fill_(options.scaling ? options.scaling->initial : 1);
}

AdamW::~AdamW() = default;
AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;

void AdamW::step(const StepOptions& options) {
  const OutsideInference normal;
  const auto runtime = state_->alive();
  runtime->check_complete("optimizer.step()");
  state_->follow(*runtime);
  const ProfileScope scope(state_->range_name);
  state_->take_tokens(*runtime, options.tokens);
  state_->measure();
  advance_control(state_->fields, state_->totals, state_->rules);
  state_->pass.run(state_->fields);
  runtime->publish(/*by_optimizer=*/true);
  if (!state_->options.scaling && runtime->world().device().is_cpu()) {
    state_->check_finite(*runtime);
  }
}

/// All ranks know that the norm is not finite; who has the elements can say of which parameter.
void AdamW::State::check_finite(Runtime& from) const {
  if (value(control::skip) == 0) return;
  report_findings(from.parts(), ": no weight was changed");
  throw NotFiniteError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str(
          "[optim] the gradient of '", from.root().name(), "' has no finite norm in step ",
          from.state().step(), ": no weight was changed"),
      {});
}

void AdamW::set_rate(double rate) {
  check("rate", rate, rate >= 0, "0 or more");
  state_->options.rate = rate;
  state_->field(control::rate).fill_(rate);
}

void AdamW::set_tokens(int64_t tokens) {
  const auto runtime = state_->alive();
  TORCH_CHECK_VALUE(
      tokens >= 0, "[optim] the step of '", runtime->root().name(), "' has ", tokens, " tokens");
  state_->field(control::own_tokens).fill_(static_cast<double>(tokens));
  runtime->graph().tokens_given = true;
}

at::Tensor AdamW::scale(const at::Tensor& loss) const {
  if (!state_->options.scaling) return loss;
  return loss * state_->field(control::scale).squeeze(0).to(loss.scalar_type());
}

double AdamW::rate() const {
  return state_->value(control::rate);
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
    const bool frozen = state_->frozen[state_->order[i]];
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
      static_cast<int64_t>(state.fields.nbytes() + state.sums.nbytes() + state.totals.nbytes());
  return bytes;
}

}  // namespace sherd
