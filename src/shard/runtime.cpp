// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "shard/outside_inference.h"
#include "shard/registry.h"

namespace sherd {

std::shared_ptr<Runtime> Runtime::of(Unit& unit) {
  if (unit.runtime && unit.runtime->units_.back()) return unit.runtime;  // else its root is gone
  const auto module = module_of(unit);
  TORCH_CHECK(module, "[shard] the module of unit '", unit.name(), "' is gone");
  std::shared_ptr<Runtime> runtime(new Runtime(unit.mesh().world()));
  runtime->form(unit);
  return runtime;
}

std::shared_ptr<Runtime> Runtime::of_model(const torch::nn::Module& model, const char* caller) {
  const auto unit = find_unit(&model);
  TORCH_CHECK_VALUE(
      unit, "[shard] ", caller, " is called with '", model.name(),
      "', which is not sharded: call sherd::fully_shard on the whole model, last");
  auto runtime = of(*unit);
  runtime->check_whole();
  TORCH_CHECK_VALUE(
      &runtime->root() == unit.get(), "[shard] ", caller, " is called with unit '", unit->name(),
      "', which is not the root: pass '", runtime->root().name(), "'");
  return runtime;
}

std::string Runtime::full_name(const Unit& unit, const std::string& name) const {
  return &unit == &root() ? name : unit.name() + "." + name;
}

Runtime::~Runtime() = default;

void Runtime::form(Unit& root) {
  const OutsideInference normal;
  find_units(root);
  agreement_ = std::make_unique<Agreement>(world_);
  build(default_order());
  const auto self = shared_from_this();
  for (auto* unit : units_) unit->runtime = self;
  keep_parameterless_units_alive();
  shards_ = parameter_shards(units_);
  published_versions_ = versions();
  std::vector<at::Tensor> weights;
  for (const auto& shard : shards_) {
    if (shard.trainable) weights.push_back(shard.main);
  }
  main_weights_seen_ = WeightChangeDetector(weights);
  frozen_.assign(frozen_now().size(), false);
}

std::vector<bool> Runtime::frozen_now() const {
  std::vector<bool> frozen;
  for (const auto* unit : units_) unit->add_frozen(frozen);
  return frozen;
}

bool Runtime::is_reached() const {
  return std::any_of(
      units_.begin(), units_.end(), [](const Unit* unit) { return unit->is_reached(); });
}

bool Runtime::has_trainable() const {
  return !frozen_.empty();
}

std::string Runtime::name_of_trainable(size_t number) const {
  for (const auto& shard : shards_) {
    if (shard.trainable && number-- == 0) return shard.name;
  }
  return "";
}

std::string Runtime::frozen_text(const std::vector<bool>& frozen) const {
  std::string text;
  for (size_t i = 0; i < frozen.size(); ++i) {
    if (frozen[i]) text += (text.empty() ? "" : ", ") + name_of_trainable(i);
  }
  return text.empty() ? "none" : text;
}

/// Units without parameters live as long as one that has some.
void Runtime::keep_parameterless_units_alive() {
  const auto holder = std::find_if(
      units_.begin(), units_.end(), [](const Unit* unit) { return !unit->groups().empty(); });
  if (holder == units_.end()) return;
  for (auto* unit : units_) {
    if (!unit->groups().empty()) continue;
    (*holder)->holds.push_back(unit->shared_from_this());
    registry().keep(unit->shared_from_this(), false);
  }
}

/// All units inside the root's module, inner ones first, each with the path of its module as name.
void Runtime::find_units(Unit& root) {
  const auto module = module_of(root);
  std::vector<std::pair<std::string, Unit*>> found;
  std::vector<std::shared_ptr<Unit>> old;
  for (const auto& item : module->named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const auto unit = find_unit(item.value().get());
    // A module may be registered under several names: the first is the unit's.
    if (!unit || std::find(old.begin(), old.end(), unit) != old.end()) continue;
    if (unit->runtime && unit->runtime->units_.back()) {
      unit->runtime->check_resting("a new root");
      TORCH_CHECK(
          unit->runtime->backwards_done() == 0, "[shard] unit '", unit->name(),
          "' is part of a step of the root '", unit->runtime->root().name(),
          "': finish that step before calling '", root.name(), "'");
    }
    if (unit.get() != &root) unit->set_name(item.key());
    found.emplace_back(unit.get() == &root ? "" : item.key(), unit.get());
    old.push_back(unit);
  }
  std::sort(found.begin(), found.end(), [](const auto& one, const auto& other) {
    return one.second->sequence < other.second->sequence;
  });
  TORCH_CHECK(
      found.back().second == &root, "[shard] unit '", found.back().second->name(),
      "' was sharded after '", root.name(), "', which contains it: shard inner modules first");
  for (size_t i = 0; i < found.size(); ++i) {
    auto& [path, unit] = found[i];
    unit->number = static_cast<int32_t>(i);
    units_.push_back(unit);
    // The nearest unit around it has the longest path that its own begins with.
    int32_t parent = kNone;
    size_t longest = 0;
    for (size_t j = 0; j < found.size(); ++j) {
      const auto& other = found[j].first;
      const bool around = i != j && (other.empty() || path.rfind(other + ".", 0) == 0);
      if (around && (parent == kNone || other.size() > longest)) {
        parent = static_cast<int32_t>(j);
        longest = other.size();
      }
    }
    parents_.push_back(parent);
  }
}

// Operations of one communicator run in order, so a gather must not share one with a reduction that
// it need not wait for. On CUDA all is enqueued in the order of the program, so models on one mesh
// can share them. On CPU a stream's next collective starts when the host looks, which is another
// time on every rank: there each model has its own.
Communicator* Runtime::link(const Mesh& mesh, const std::string& axis, const char* purpose) {
  if (world_.device().is_cuda()) return &mesh.communicator(axis, purpose);
  auto& own = links_[{&mesh.communicator(axis), purpose}];
  if (!own) own = mesh.new_communicator(axis, purpose);
  return own.get();
}

GroupCommunicators Runtime::links_of(const GroupTraits& traits) {
  const auto& [mesh, axes] = std::tie(traits.mesh, traits.axes);
  GroupCommunicators links;
  links.gather.inner = link(mesh, axes.inner, "gather");
  links.reduce.inner = link(mesh, axes.inner, "reduce");
  if (axes.outer.empty()) return links;
  // Their own: another group's inner axis may be this one, on another stream.
  links.gather.outer = link(mesh, axes.outer, "gather.outer");
  links.reduce.outer = link(mesh, axes.outer, "reduce.outer");
  return links;
}

CallOrder Runtime::default_order() const {
  return order_of_tree(parents_);
}

void Runtime::build(CallOrder order) {
  std::vector<UnitSpec> specs;
  for (const auto* unit : units_) {
    specs.push_back(unit->spec());
    const bool nests = std::find(parents_.begin(), parents_.end(), unit->number) != parents_.end();
    TORCH_CHECK_VALUE(
        unit->prefetch().empty() || !nests, "[shard] unit '", unit->name(),
        "' contains other units and prefetches for none: name the units to prefetch in the options "
        "of a unit that contains none");
    for (const auto& module : unit->prefetch()) {
      const auto other = find_unit(module.lock().get());
      TORCH_CHECK_VALUE(
          other && other->number != kNone, "[shard] unit '", unit->name(),
          "' is to prefetch a module that is no unit of this model: shard it first");
      specs.back().prefetch.push_back(other->number);
    }
  }
  const auto& options = root().options();
  ProgramOptions wanted;
  wanted.prefetch_depth = options.prefetch_depth;
  wanted.micro_batches = micro_batches_;
  wanted.memory = options.memory;
  wanted.budget = options.budget;
  wanted.loss = options.loss == Loss::mean  ? c10::str("mean over ", divisor(), " ranks")
                : options.loss == Loss::sum ? "sum"
                                            : "per token";
  const auto made = [&](const Program* before) {
    return std::make_shared<const Program>(
        Program::build(specs, order, wanted, {.evaluation = evaluation_, .before = before}));
  };
  TORCH_CHECK(
      addresses_pinned_by_.empty(), "[shard] '", root().name(), "' needs another program, but ",
      addresses_pinned_by_,
      ", which has this one's addresses: run every order of units and set the number of "
      "micro-batches before");
  if (!order_agreed_) {
    next_program_ = made(nullptr);
  } else {
    try {
      next_program_ = made(next_program_.get());
    } catch (const std::runtime_error&) {
      next_program_ = made(nullptr);  // other addresses: no graph has the old ones
    }
  }
  use(next_program_);
}

/// The loss is averaged over the data-parallel ranks of the root's mesh, whatever the mesh of a
/// group: an expert's gradient is a sum over its own replicas only, of losses of all ranks.
double Runtime::divisor() const {
  if (root().options().loss != Loss::mean) return 1;
  const auto& axes = root().axes();
  const auto& mesh = root().mesh();
  return static_cast<double>(
      mesh.size(axes.inner) * (axes.outer.empty() ? 1 : mesh.size(axes.outer)));
}

void Runtime::use(std::shared_ptr<const Program> program) {
  const OutsideInference normal;
  if (streams_) streams_->finish();
  for (auto* unit : units_) unit->hide();
  units_stay_gathered_ = false;
  program_ = std::move(program);
  const auto device = world_.device();
  // Eager: but for the stages, groups take their own.
  const int64_t bytes = arena_range().second;
  if (!arena_.defined() || arena_.numel() != bytes) {
    watch_.release();
    for (const auto* unit : units_) {
      for (const auto& group : unit->groups()) group->transfers().unbind();
    }
    allocate_arena(bytes);
  }
  if (!streams_ || streams_->events() != program_->events().size()) {
    streams_ = std::make_unique<ProgramStreams>(device, program_->events().size());
    streams_->set_recorder(recorder_);
  }
  bind_groups();
  watch_.prepare(units_, micro_batches_);
  // What was written here (shards, an empty arena) is there before the first gather reads or
  // writes.
  streams_->signal(published());
  program_agreed_ = false;
}

void Runtime::allocate_arena(int64_t bytes) {
  windows_.clear();
  arena_.reset();
  const auto device = world_.device();
  if (!root().options().symmetric || device.is_meta()) {
    arena_ = at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    return;
  }
  TORCH_CHECK_VALUE(
      program_->options().memory == MemoryKind::planned, "[shard] the memory of '", root().name(),
      "' is to be symmetric and eager: what is registered has one address; set memory = planned");
  arena_ = symmetric_memory(bytes, device).zero_();
  std::set<Communicator*> known;
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) {
      const auto links = links_of(group->traits());
      for (auto* link :
           {links.gather.inner, links.reduce.inner, links.gather.outer, links.reduce.outer}) {
        if (!link || !known.insert(link).second) continue;
        windows_.push_back(register_window(*link, arena_));
        symmetric_text_ = symmetric_text(*link);
      }
    }
  }
}

std::string Runtime::symmetric_report() const {
  if (windows_.empty()) return "";
  return c10::str(
      "the arena of ", arena_.numel(), " bytes is registered with ", windows_.size(),
      " communicators; ", symmetric_text_);
}

/// Of the program's addresses: those that lie in the arena.
std::pair<int64_t, int64_t> Runtime::arena_range() const {
  if (program_->options().memory == MemoryKind::planned) {
    const int64_t bytes = program_->bytes().arena;
    return {0, root().options().symmetric ? symmetric_bytes(bytes) : bytes};
  }
  int64_t begin = 0;
  int64_t bytes = 0;
  for (const auto& slot : program_->slots()) {
    if (is_eager() && slot.name.rfind("stage", 0) != 0) continue;
    if (bytes == 0) begin = slot.offset;
    bytes = slot.offset + slot.bytes - begin;
  }
  return {begin, bytes};
}

void Runtime::bind_groups() {
  const bool eager = is_eager();
  const int64_t begin = arena_range().first;
  const auto offset = [&](int32_t slot, int64_t inside) {
    if (slot == kNone) return int64_t{kNone};
    return program_->slots()[static_cast<size_t>(slot)].offset - begin + inside;
  };
  const auto named = [&](const char* name) {
    for (const auto& slot : program_->slots()) {
      if (slot.name == name) return slot.offset - begin;
    }
    return int64_t{kNone};
  };
  reducing_.clear();
  for (const auto* unit : units_) {
    const auto& place = program_->place(unit->number);
    for (size_t i = 0; i < unit->groups().size(); ++i) {
      auto& group = *unit->groups()[i];
      group.transfers().bind(
          {arena_, eager, offset(place.parameters, place.parameter_offsets[i]),
           offset(place.gradients, place.gradient_offsets[i]), named("stage.reduce"),
           named("stage.outer")},
          links_of(group.traits()), divisor());
    }
  }
}

int32_t Runtime::published() const {
  return program_->update().instructions.back().signals;
}

ModelBytes Runtime::bytes() const {
  const auto of = [](const at::Tensor& tensor) {
    return tensor.defined() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
  };
  ModelBytes bytes;
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) group->add_bytes(bytes);
  }
  bytes.arena += of(arena_);
  bytes.control = watch_.bytes() + main_weights_seen_.bytes() + agreement_->bytes();
  return bytes;
}

int64_t Runtime::allocated() const {
  ModelBytes bytes;
  if (arena_.defined()) bytes.arena = static_cast<int64_t>(arena_.storage().nbytes());
  for (const auto* unit : units_) {
    if (!unit) continue;
    for (const auto& group : unit->groups()) group->add_bytes(bytes);
  }
  return bytes.sum();
}

void Runtime::drop(Unit& unit) noexcept {
  notice_failure();
  // What is under way may still read its shards.
  if (streams_) streams_->abandon();
  for (auto*& one : units_) {
    if (one == &unit) one = nullptr;
  }
  shards_.clear();  // they keep its memory
}

int64_t Runtime::versions() const {
  int64_t sum = 0;
  for (const auto& shard : shards_) {
    if (shard.trainable) sum += shard.main._version();
  }
  return sum;
}

void Runtime::check_published() {
  bool same = versions() == published_versions_;
  // Between the last backward and publish is where an optimizer may have written unseen.
  if (same && backwards_done_ == micro_batches_ && !world_.device().is_meta())
    same = !main_weights_seen_.changed();
  TORCH_CHECK(
      same, "[shard] the main weights of '", root().name(),
      "' have changed, but the model still computes with the old ones: call sherd::publish(model) "
      "after optimizer.step()");
}

void Runtime::check_whole() const {
  for (const auto* unit : units_) {
    TORCH_CHECK(unit, "[shard] a unit of this model was deleted: shard the model anew");
  }
}

void Runtime::check_initialised() const {
  if (world_.device().is_meta()) return;
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) {
      const auto name = group->storage().first_uninitialised();
      TORCH_CHECK(
          !name, "[shard] parameter '", full_name(*unit, *name),
          "' was built on the meta device and has no values: call sherd::initialise(model)");
    }
  }
}

void Runtime::check_resting(const char* caller) {
  notice_failure();
  if (phase_ == Phase::resting) return;
  for (const auto* unit : units_) {
    TORCH_CHECK(
        !unit->gathered && !unit->collecting, "[shard] ", caller, ": unit '", unit->name(), "' is ",
        unit->gathered ? "gathered" : "collecting gradients", " in the ",
        phase_ == Phase::forward ? "forward" : "backward",
        " that is under way: do it between passes");
  }
  TORCH_CHECK(false, "[shard] ", caller, ": a pass of '", root().name(), "' is under way");
}

void Runtime::set_micro_batches(int64_t count) {
  TORCH_CHECK_VALUE(
      count >= 1, "[shard] micro_batches(", root().name(), ", ", count, "): at least 1");
  check_resting("micro_batches");
  TORCH_CHECK(
      backwards_done_ == 0, "[shard] micro_batches(", root().name(), ", ", count,
      ") in the middle of a step: ", backwards_done_, " of ", micro_batches_,
      " backwards are done; call it between steps");
  if (count == micro_batches_) return;
  micro_batches_ = count;
  build(next_program_->order());
}

void Runtime::check_complete(const char* caller) {
  check_resting(caller);
  if (!has_trainable()) return;  // its backwards are of no step
  TORCH_CHECK(
      backwards_done_ == micro_batches_, "[shard] ", caller, " after ", backwards_done_, " of the ",
      micro_batches_, " backwards that make a step of '", root().name(),
      "': run the rest first, or say another number with sherd::micro_batches");
  agree_on_update(caller);
}

/// On CPU what follows blocks: ranks would wait in it for one that skips the update. On CUDA the
/// host goes on, and learns of it at the next pass.
void Runtime::agree_on_update(const char* caller) {
  if (!world_.device().is_cpu() || world_.size() == 1) return;
  agreement_->start({Agreement::Kind::update, step_, hash_of(caller)}, [caller, step = step_] {
    return c10::str("calls ", caller, " in step ", step + 1);
  });
  agreement_->check(/*block=*/true);
}

void Runtime::divide_by_tokens(double tokens) {
  TORCH_CHECK_VALUE(
      root().options().loss == Loss::per_token, "[shard] tokens are given for '", root().name(),
      "', but its loss is not per token: set options.loss = sherd::Loss::per_token");
  TORCH_CHECK_VALUE(
      tokens > 0, "[shard] the step of '", root().name(), "' has ", tokens, " tokens on all ranks");
  TORCH_CHECK(!divided_, "[shard] the gradients are already divided by the tokens");
  divided_ = true;
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) {
      if (group->traits().trainable) group->storage().divide_gradient(tokens);
    }
  }
  attach_gradients();
}

/// An optimizer over the module's own parameters finds no gradients there and does nothing.
void Runtime::warn_if_unchanged() const {
  if (step_ > 0 || backwards_done_ == 0 || backwards_done_ < micro_batches_ ||
      world_.device().is_meta())
    return;
  if (main_weights_seen_.is_empty() || versions() != published_versions_ ||
      main_weights_seen_.changed())
    return;
  TORCH_WARN(
      "[shard] publish in the first step of '", root().name(),
      "', but no main weight has changed: build the optimizer over sherd::parameters(model), not "
      "over model->parameters(), whose gradients are never set");
}

void Runtime::publish(bool by_optimizer) {
  check_resting("publish");
  TORCH_CHECK(
      backwards_done_ == 0 || backwards_done_ == micro_batches_, "[shard] publish after ",
      backwards_done_, " of the ", micro_batches_, " backwards that make a step of '",
      root().name(), "': run the rest first, or say another number with sherd::micro_batches");
  TORCH_CHECK(
      backwards_done_ == 0 || divided_ || by_optimizer || root().options().loss != Loss::per_token,
      "[shard] the loss of '", root().name(),
      "' is per token, but the gradients were not divided: update with "
      "sherd::step(model, optimizer, {.tokens = …})");
  for (auto* unit : units_) {
    if (unit->gathered) unit->hide();  // gathered ahead or kept: the values are old now
    for (const auto& group : unit->groups()) {
      if (!group->traits().trainable) continue;
      if (!by_optimizer) group->storage().publish();
    }
  }
  for (const auto& shard : shards_) {
    if (shard.trainable) shard.main.mutable_grad() = at::Tensor();
  }
  streams_->signal(published());
  if (recorder_ && update_entry_) recorder_->end(*update_entry_, {});
  update_entry_.reset();
  published_versions_ = versions();
  changed_ = true;
  ++weight_version_;
  units_stay_gathered_ = divided_ = false;
  // A backward may have had an older one, of its forward.
  if (program_ != next_program_) use(next_program_);
  backwards_done_ = passes_ = 0;
  ++step_;
}

void Runtime::publish_loaded() {
  for (const auto* unit : units_) {
    for (const auto& group : unit->groups()) group->storage().mark_all_initialised();
  }
  publish();
  --step_;
}

void Runtime::note_edit() {
  for (auto* unit : units_) unit->hide();  // what was kept gathered is old now
  units_stay_gathered_ = false;
  ++weight_version_;
  published_versions_ = versions();
  streams_->signal(published());
}

void Runtime::finish() {
  notice_failure();
  if (recovering_) return;  // what is under way may never end; the next pass finds out
  streams_->finish();
}

}  // namespace sherd
