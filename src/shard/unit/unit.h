// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shard/unit/unit_activity.h"
#include "shard/unit/unit_members.h"
#include "shard/unit/unit_settings.h"
#include "sherd/plan/program.h"

namespace sherd {

class Runtime;

/// A module whose parameters are gathered and released together. It lives as long as one of its
/// parameters, which hold it; the module itself knows nothing of it.
///
/// It has three parts: its settings, its members (the parameters) and its activity (what it is
/// doing now). What is here involves several of them, or is a shorthand for one.
class Unit : public std::enable_shared_from_this<Unit> {
 public:
  explicit Unit(UnitSettings settings) : settings_(std::move(settings)) {}
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  const UnitSettings& settings() const { return settings_; }
  const UnitMembers& members() const { return members_; }
  const UnitActivity& activity() const { return activity_; }
  UnitActivity& activity() { return activity_; }

  const std::string& name() const { return settings_.name(); }
  const UnitOptions& options() const { return settings_.options(); }
  const RootOptions& root_options() const { return settings_.root_options(); }
  const Mesh& mesh() const { return settings_.mesh(); }
  const DataAxes& axes() const { return settings_.axes(); }
  const std::vector<std::unique_ptr<Group>>& groups() const { return members_.groups(); }
  /// Returns the unit as a program knows it, without the units to prefetch.
  UnitSpec spec() const;

  // ---- sharding ----------------------------------------------------------------------------

  void set_name(const std::string& name);
  void set_settings(UnitSettings settings) { settings_ = std::move(settings); }
  /// Takes the candidates as its parameters. Collective.
  void take(const std::vector<UnshardedParameter>& candidates);
  /// Gives all parameters back to the module, whole. Collective.
  std::vector<UnshardedParameter> give_back();
  /// See check_patterns_match.
  void set_unmatched(UnmatchedPatterns patterns) { settings_.set_unmatched(std::move(patterns)); }

  // ---- its model ---------------------------------------------------------------------------

  /// Returns the runtime of the model; null before the model's first use.
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  void set_runtime(const std::shared_ptr<Runtime>& runtime) { runtime_ = runtime; }
  /// Returns the unit's number in the program; kNone before the model's first use.
  int32_t number() const { return number_; }
  void set_number(int32_t number) { number_ = number; }
  /// Lets a unit without parameters live as long as this one.
  void keep_alive(std::shared_ptr<Unit> unit) { kept_alive_.push_back(std::move(unit)); }

  // ---- a pass ------------------------------------------------------------------------------

  /// Puts a node in place of each parameter's gradient accumulator, for the current stream.
  void prepare_nodes() { members_.prepare_nodes(weak_from_this()); }
  /// Maps the parameters to what was gathered.
  void show(bool backward);
  /// Unmaps the parameters: reading them throws. Frees eager memory, unless told to leave it.
  void hide(bool keeps_memory = false);
  /// Ends a call that was begun in the activity.
  void leave();
  /// Takes a gradient that autograd delivers.
  void receive(size_t group, size_t member, const at::Tensor& gradient);

 private:
  UnitSettings settings_;
  UnitMembers members_;
  UnitActivity activity_;
  std::shared_ptr<Runtime> runtime_;
  int32_t number_ = kNone;
  std::vector<std::shared_ptr<Unit>> kept_alive_;  // units without parameters
};

}  // namespace sherd
