// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/profile_range.h"
#include "shard/group/group.h"
#include "sherd/shard/options.h"

namespace torch::nn {
class Module;
}

namespace sherd {

class Runtime;

/// A parameter of the module, and its place in the unit.
struct UnitParameter {
  at::Tensor parameter;
  size_t group = 0;
  size_t index = 0;
};

/// A module whose parameters are gathered and released together. It lives as long as one of its
/// parameters, which hold it; the module itself knows nothing of it.
class Unit : public std::enable_shared_from_this<Unit> {
 public:
  enum class Phase : uint8_t { resting, forward, backward };

  Unit(
      std::string name,
      UnitOptions options,
      std::optional<RootOptions> root_options,
      std::shared_ptr<const Mesh> mesh);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  /// Takes the candidates as its parameters, in groups by dtype, mesh and trainability.
  void take(const std::vector<UnshardedParameter>& candidates);
  /// Gives all parameters back to the module, whole. Collective.
  std::vector<UnshardedParameter> give_back();

  const std::string& name() const { return name_; }
  void set_name(std::string name);
  const UnitOptions& options() const { return options_; }
  /// The options that hold for the whole model if this is its root.
  const RootOptions& root_options() const {
    static const RootOptions defaults;
    return root_options_ ? *root_options_ : defaults;
  }
  /// Throws if options of a root were given: this is a unit inside `root`.
  void check_no_root_options(const Unit& root) const;
  /// The modules of options().prefetch and backward_prefetch: units hold no module.
  using Modules = std::vector<std::weak_ptr<torch::nn::Module>>;
  const Modules& prefetch() const { return prefetch_; }
  const Modules& backward_prefetch() const { return backward_prefetch_; }
  const Mesh& mesh() const { return *mesh_; }
  const DataAxes& axes() const { return axes_; }
  const std::vector<std::unique_ptr<Group>>& groups() const { return groups_; }
  UnitSpec spec() const;
  std::vector<UnitParameter> parameters() const;

  /// Puts a node in place of each parameter's gradient accumulator, for the current stream.
  void prepare_nodes();
  /// Appends, for each parameter that was trainable when it was sharded, whether it is frozen now.
  void add_frozen(std::vector<bool>& frozen) const;
  /// Whether the backward that autograd runs on this thread, or any outside one, brings a gradient
  /// to one of the parameters.
  bool is_reached() const;

  int64_t sequence = 0;  // order in which units were sharded

  // Set by its runtime.
  std::vector<std::shared_ptr<Unit>> holds;  // units without parameters live as long as this one
  std::shared_ptr<Runtime> runtime;
  int32_t number = kNone;  // in the program
  Phase phase = Phase::resting;
  int32_t calls = 0;                                        // under way
  bool gathered = false;                                    // parameters are readable
  bool collecting = false;                                  // gradients may arrive
  std::optional<std::vector<at::Tensor>> gathered_outside;  // by sherd::gather; until hide()

  void show();
  /// Unmaps the parameters: reading them throws. Frees eager memory, unless it is kept.
  void hide(bool keeps_memory = false);
  /// Begins and ends a call.
  void enter(Phase now);
  void leave();
  /// Ends all calls after a failure.
  void rest() noexcept;
  void receive(size_t group, size_t member, const at::Tensor& gradient);

 private:
  struct Member {
    c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
    size_t group = 0;
    size_t index = 0;
    std::shared_ptr<torch::autograd::Node> node;
  };
  void attach(const at::Tensor& parameter, size_t group, size_t index);

  std::string name_;
  std::string forward_range_;
  std::string backward_range_;
  ProfileRange range_;
  UnitOptions options_;
  std::optional<RootOptions> root_options_;
  Modules prefetch_;
  Modules backward_prefetch_;
  std::shared_ptr<const Mesh> mesh_;
  DataAxes axes_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Member> members_;
  std::vector<UnshardedParameter> rules_of_members_;  // names and granules, for give_back
  std::optional<c10::Stream> node_stream_;
};

// ---- who is a unit, and whose parameter is it ---------------------------------------------------

/// The unit of a module; null if it is none.
std::shared_ptr<Unit> find_unit(const torch::nn::Module* module);
void register_unit(const std::shared_ptr<torch::nn::Module>& module, std::shared_ptr<Unit> unit);
std::shared_ptr<torch::nn::Module> module_of(const Unit& unit);

/// The unit that owns a parameter, with its place there; null if none does.
struct Owner {
  std::shared_ptr<Unit> unit;
  size_t group = 0;
  size_t member = 0;
};
Owner find_owner(const at::Tensor& parameter);

}  // namespace sherd
