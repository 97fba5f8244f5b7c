// SPDX-License-Identifier: Apache-2.0
// A group's full parameters and full gradients have one address for life, in every kind of pass.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <set>

#include "shard/registry.h"
#include "shard/runtime/runtime.h"
#include "shard/stack.h"
#include "shard/twin.h"
#include "sherd/models/hybrid.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::testing {
namespace {

/// Where each parameter lies while it is gathered, and its gradient while its unit is in the
/// backward: looked up before every operation of torch and every node of autograd. One at a time.
class Sightings {
 public:
  using Places = std::map<std::string, std::set<const void*>>;

  explicit Sightings(const torch::nn::Module& model)
      : runtime_(Runtime::of_model(model, "a test")) {
    for (const auto* unit : runtime_->units()) {
      for (const auto& [parameter, number, index] : unit->members().parameters()) {
        const auto& group = *unit->groups()[number];
        const auto name = runtime_->units().full_name(*unit, group.name(index));
        members_.push_back({name, parameter, unit, &group, index, nullptr, nullptr, false});
      }
    }
    current_ = this;
    // Of this thread, and so of the backward that it begins, whichever thread that is on.
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_operation));
  }
  ~Sightings() {
    at::removeCallback(handle_);
    runtime_->streams().set_disturbance({});
  }
  Sightings(const Sightings&) = delete;
  Sightings& operator=(const Sightings&) = delete;

  /// Looks while `run` runs; how many parameters were seen.
  size_t of(const std::function<void()>& run) {
    for (auto& member : members_) member.seen = false;
    looking_ = true;
    run();
    looking_ = false;
    return static_cast<size_t>(std::count_if(
        members_.begin(), members_.end(), [](const Member& member) { return member.seen; }));
  }
  /// The same, and each parameter must be seen.
  void of_all(const std::function<void()>& run) { EXPECT_EQ(of(run), members_.size()); }
  /// Also looks while a unit is gathered but not computing.
  void look_at_waits() {
    runtime_->streams().set_disturbance([this](Stream stream, Communicator::OnStream) {
      if (looking_ && stream == Stream::compute) look();
    });
  }

  void forget() {
    parameters_.clear();
    gradients_.clear();
    for (auto& member : members_) member.parameter_at = member.gradient_at = nullptr;
  }
  const Places& parameters() const { return parameters_; }
  const Places& gradients() const { return gradients_; }

  void expect_one_address() const {
    const auto count = [](const Places& places, const std::string& name) {
      const auto found = places.find(name);
      return found == places.end() ? 0 : found->second.size();
    };
    for (const auto& member : members_) {
      const bool trainable = member.group->traits().trainable;
      EXPECT_EQ(count(parameters_, member.name), 1u) << member.name;
      EXPECT_EQ(count(gradients_, member.name), trainable ? 1u : 0u) << "gradient, " << member.name;
    }
  }

 private:
  struct Member {
    std::string name;
    at::Tensor parameter;
    const Unit* unit;
    const Group* group;
    size_t index;
    // Where they were seen last: there are many looks, and few new addresses.
    const void* parameter_at;
    const void* gradient_at;
    bool seen;
  };

  static std::unique_ptr<at::ObserverContext> on_operation(const at::RecordFunction&) {
    if (current_->looking_) current_->look();
    return nullptr;
  }

  void look() {
    for (auto& member : members_) {
      if (member.group->parameters().shown()) {
        member.seen = true;
        note(parameters_, member.name, member.parameter_at, member.parameter.const_data_ptr());
      }
      const auto& gradients = member.group->inbox().targets();  // eager: none without memory
      if (member.unit->activity().is_collecting() && member.index < gradients.size()) {
        const void* gradient = gradients[member.index].const_data_ptr();
        note(gradients_, member.name, member.gradient_at, gradient);
      }
    }
  }

  static void note(Places& places, const std::string& name, const void*& last, const void* now) {
    if (now == last) return;
    last = now;
    places[name].insert(now);
  }

  inline static Sightings* current_ = nullptr;
  std::shared_ptr<Runtime> runtime_;
  std::vector<Member> members_;
  at::CallbackHandle handle_{};
  bool looking_ = false;
  Places parameters_;
  Places gradients_;
};

using LossOf = std::function<at::Tensor()>;

void train(Sightings& sightings, const LossOf& loss_of) {
  at::Tensor loss;
  sightings.of_all([&] { loss = loss_of(); });
  sightings.of_all([&] { loss.backward(); });
}

void validate(Sightings& sightings, torch::nn::Module& model, const LossOf& loss_of) {
  const torch::NoGradGuard no_grad;
  model.eval();
  sightings.of_all([&] { loss_of(); });
  model.train();
}

std::vector<ShardingCase> gathering_ways() {
  auto ways = all_ways();
  std::erase_if(ways, [](const ShardingCase& way) {
    return way.placement.spreads(Role::parameter).inner != Spread::shard;
  });
  return ways;
}

/// A transformer of six equal blocks, its data and its optimizer.
struct Tower {
  explicit Tower(
      const UnitOptions& options, int64_t count = 1, const RootOptions& root = RootOptions()) {
    torch::manual_seed(3);
    model = Transformer(ModelOptions{}, /*layers=*/6);
    to_device(*model);
    shard_stack(model, options, root);
    micro_batches(model, count);
    optimizer = make_optimizer(Optimizer::sgd, sherd::parameters(model));
  }
  at::Tensor loss() {
    const auto numbers = torch::TensorOptions(torch::kLong).device(test_world().device());
    return model(
        torch::arange(12, numbers).view({2, 6}) + test_world().rank() % 8,
        torch::arange(3, 15, numbers).view({2, 6}));
  }
  Transformer model{nullptr};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

/// Three steps, with validation before and after each update.
void train_and_validate(Tower& tower, Sightings& sightings) {
  const auto loss_of = [&] { return tower.loss(); };
  for (int64_t step = 0; step < 3; ++step) {
    train(sightings, loss_of);
    validate(sightings, *tower.model, loss_of);
    sherd::step(tower.model, *tower.optimizer);
    validate(sightings, *tower.model, loss_of);
  }
}

class AddressesTest : public ::testing::TestWithParam<ShardingCase> {};

TEST_P(AddressesTest, ValidationBetweenStepsKeepsEveryAddress) {
  for (const int64_t depth : {1, 2}) {
    for (const bool keep_gathered : {false, true}) {
      SCOPED_TRACE(c10::str("depth ", depth, keep_gathered ? ", kept gathered" : ""));
      auto options = options_for(GetParam());
      options.keep_gathered = keep_gathered;
      Tower tower(options, 1, {.prefetch_depth = depth});
      Sightings sightings(*tower.model);
      train_and_validate(tower, sightings);
      sightings.expect_one_address();
      // Else it would say little: units take turns.
      int64_t gathered = 0;
      for (const auto& group : groups(tower.model)) gathered += group.gathered_bytes;
      EXPECT_LT(program(tower.model).bytes().arena, 2 * gathered);
    }
  }
}

/// In turn, ranks have nothing for the second micro-batch and for validation.
TEST_P(AddressesTest, AnIdlePassHasTheAddressesOfAllOthers) {
  Tower tower(options_for(GetParam()), /*count=*/2);
  Sightings sightings(*tower.model);
  sightings.look_at_waits();
  const auto loss_of = [&] { return tower.loss(); };
  const auto idle = [&] { idle_pass(tower.model); };
  for (int64_t step = 0; step < 3; ++step) {
    const bool has_data = (test_world().rank() + step) % 2 == 1;
    train(sightings, loss_of);
    if (has_data) {
      train(sightings, loss_of);
    } else {
      sightings.of_all(idle);
    }
    sherd::step(tower.model, *tower.optimizer);
    const torch::NoGradGuard no_grad;
    if (has_data) {
      validate(sightings, *tower.model, loss_of);
    } else {
      sightings.of_all(idle);
    }
  }
  sightings.expect_one_address();
}

// ---- validation that goes its own way -----------------------------------------------------------

using Links = std::vector<size_t>;

/// A chain of four equal links, trained in their order and validated through others.
struct Walk {
  explicit Walk(const ShardingCase& way) : model(sharded(way)), sightings(*model) {
    optimizer = make_optimizer(Optimizer::sgd, sherd::parameters(model));
  }
  static Chain sharded(const ShardingCase& way) {
    torch::manual_seed(3);
    Chain chain(4);
    to_device(*chain);
    Twin::shard_in_order(chain, options_for(way));
    return chain;
  }
  void train() {
    model->route = nullptr;
    testing::train(sightings, [&] { return model(chain_input(test_world().rank(), step)); });
    sherd::step(model, *optimizer);
    ++step;
  }
  void validate(const Links& links) {
    const torch::NoGradGuard no_grad;
    model->eval();
    model->route = [links](ChainImpl& chain, const at::Tensor& x) {
      auto y = x;
      for (const size_t i : links) y = chain.links[i](y);
      return y;
    };
    // Five of each link, three of the root.
    const auto seen = sightings.of([&] { model(chain_input(test_world().rank(), step, 7)); });
    EXPECT_GE(seen, 5 * links.size() + 3);
    model->train();
  }
  Chain model;
  Sightings sightings;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  int64_t step = 0;
};

/// What no rank calls is gathered all the same, so it is no order of its own.
TEST_P(AddressesTest, ValidationThatSkipsUnitsKeepsEveryAddress) {
  Walk walk(GetParam());
  for (int64_t step = 0; step < 3; ++step) {
    walk.train();
    walk.validate({0, 2});
    walk.validate({1});
  }
  EXPECT_TRUE(program(walk.model).order(false) == program(walk.model).order(true));
  walk.sightings.expect_one_address();
}

/// Backwards the same units are gathered at once as forwards, so the old addresses serve. Only the
/// pass that finds the order out has units in memory of their own.
TEST_P(AddressesTest, AnOrderOfValidationThatFitsTheAddressesKeepsThem) {
  Walk walk(GetParam());
  auto& sightings = walk.sightings;
  walk.train();
  sightings.expect_one_address();
  const auto parameters = sightings.parameters();
  const auto gradients = sightings.gradients();
  sightings.forget();
  walk.validate({3, 2, 1, 0});
  EXPECT_FALSE(program(walk.model).order(false) == program(walk.model).order(true));
  const std::string unforeseen = "link0.first.weight";
  EXPECT_NE(sightings.parameters().at(unforeseen), parameters.at(unforeseen));
  sightings.forget();
  for (int64_t step = 0; step < 3; ++step) {
    walk.train();
    walk.validate({3, 2, 1, 0});
  }
  sightings.expect_one_address();
  EXPECT_EQ(sightings.parameters(), parameters);
  EXPECT_EQ(sightings.gradients(), gradients);
}

/// The backward has its forward's program; what the validation between them found is not forgotten.
TEST_P(AddressesTest, AnOrderOfValidationFoundBeforeABackwardIsKept) {
  Walk walk(GetParam());
  auto& sightings = walk.sightings;
  const Links order{0, 2, 1, 3};  // does not fit
  walk.train();
  const auto loss = walk.model(chain_input(test_world().rank(), walk.step));
  walk.validate(order);
  walk.model->route = nullptr;
  loss.backward();
  sherd::step(walk.model, *walk.optimizer);
  sightings.forget();
  for (int64_t step = 0; step < 2; ++step) {
    walk.train();
    walk.validate(order);
  }
  EXPECT_FALSE(program(walk.model).order(false) == program(walk.model).order(true));
  sightings.expect_one_address();
}

/// A new layout is made at the end of the pass that finds the order; from then on training and
/// validation have one address again.
TEST_P(AddressesTest, AnOrderOfValidationThatDoesNotFitHasOneNewAddressInAllPasses) {
  Walk walk(GetParam());
  auto& sightings = walk.sightings;
  const std::string first = "link0.first.weight";
  const std::string third = "link2.first.weight";
  walk.train();
  sightings.expect_one_address();
  ASSERT_EQ(sightings.parameters().at(first), sightings.parameters().at(third)) << "in turn";
  walk.validate({0, 2, 1, 3});
  sightings.forget();
  for (int64_t step = 0; step < 3; ++step) {
    walk.train();
    walk.validate({0, 2, 1, 3});
  }
  sightings.expect_one_address();
  EXPECT_NE(sightings.parameters().at(first), sightings.parameters().at(third)) << "both at once";
}

// ---- functions that write a gradient themselves -------------------------------------------------

/// Adds the sum of a weight, whose gradient it writes where it is told to.
struct AddSum : torch::autograd::Function<AddSum> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({weight});
    return x + weight.sum();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    const auto weight = context->get_saved_variables()[0];
    const auto target = gradient_target(weight);
    TORCH_CHECK(target, "there is no place for the gradient");
    places[weight.unsafeGetTensorImpl()].insert(target->buffer.const_data_ptr());
    const auto values = gradients[0].sum().expand_as(weight);
    if (target->overwrite) {
      target->buffer.copy_(values);
    } else {
      target->buffer.add_(values);
    }
    return {gradients[0], at::Tensor()};
  }
  inline static std::map<const c10::TensorImpl*, std::set<const void*>> places;
};

TEST_P(AddressesTest, AGradientTargetIsTheOneAddress) {
  Walk walk(GetParam());
  AddSum::places.clear();
  for (auto& link : walk.model->links) {
    link->inside = [spare = link->spare](const at::Tensor& x) { return AddSum::apply(x, spare); };
  }
  for (int64_t step = 0; step < 3; ++step) {
    walk.train();
    walk.validate({0, 1, 2, 3});
  }
  walk.sightings.expect_one_address();
  for (size_t i = 0; i < walk.model->links.size(); ++i) {
    const auto* spare = walk.model->links[i]->spare.unsafeGetTensorImpl();
    const auto name = c10::str("link", i, ".spare");
    EXPECT_EQ(AddSum::places[spare], walk.sightings.gradients().at(name)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, AddressesTest, ::testing::ValuesIn(gathering_ways()), [](const auto& way) {
      return way.param.name;
    });

// ---- a hybrid -----------------------------------------------------------------------------------

/// Units of unequal size; some weights stay fp32 and one is frozen, so that a Mamba has three
/// groups.
std::shared_ptr<LanguageModel> make_sharded_hybrid(int64_t depth) {
  LlamaOptions base{.vocab = 48, .dim = 32, .layers = 10, .heads = 4, .kv_heads = 2};
  base.head_dim = 8;
  base.ffn = 48;
  const ExpertOptions experts{.count = 4, .top_k = 2, .ffn = 24, .shared_ffn = 16};
  const MambaOptions mamba{.state = 8, .head_dim = 16, .groups = 2, .chunk = 8};
  const auto make = [&] {
    const MetaDevice meta;
    return make_hybrid({base, experts, mamba, "M*ME-"});
  };
  const auto model = make();
  for (auto& item : model->named_parameters()) {
    if (item.key().ends_with("filter_bias")) item.value().set_requires_grad(false);
  }
  auto options = options_for({"", Placement(Strategy::optim_grads_params)});
  options.precision = Precision::recipe("bf16_o2");
  for (const char* match : {"*norm.weight", "*decay_log", "*step_bias", "*router"}) {
    options.rules.push_back({.match = match, .precision = Precision::recipe("fp32")});
  }
  for (const auto& unit : model->units()) fully_shard(unit, options);
  fully_shard(model, options, {.prefetch_depth = depth});
  initialise(*model, {.seed = 5, .values = [&](const std::string& name, at::IntArrayRef shape) {
                        return model->initial_values(name, shape);
                      }});
  return model;
}

TEST(HybridAddressesTest, ThreePassesKeepEveryAddress) {
  for (const int64_t depth : {1, 2}) {
    SCOPED_TRACE(c10::str("depth ", depth));
    const auto model = make_sharded_hybrid(depth);
    const auto optimizer = make_optimizer(Optimizer::sgd, sherd::parameters(*model));
    const auto reports = groups(*model);
    EXPECT_EQ(
        std::count_if(
            reports.begin(), reports.end(),
            [](const GroupReport& group) { return group.unit == "layer0"; }),
        3);
    const auto numbers = torch::TensorOptions(torch::kLong).device(test_world().device());
    const auto tokens = torch::arange(16, numbers).view({1, 16}) + test_world().rank() % 32;
    const auto loss_of = [&] { return call(*model, sherd::Batch{tokens, tokens}) / 16; };
    Sightings sightings(*model);
    train(sightings, loss_of);
    sherd::step(*model, *optimizer);
    validate(sightings, *model, loss_of);
    train(sightings, loss_of);
    sherd::step(*model, *optimizer);
    sightings.expect_one_address();
  }
}

}  // namespace
}  // namespace sherd::testing
