// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shard/group/group_layout.h"
#include "shard/group/group_traits.h"
#include "shard/unit/unmatched_patterns.h"
#include "sherd/shard/late_options.h"
#include "sherd/shard/options.h"

namespace sherd {

/// The settings of a unit: what fully_shard was given for it. Only the name and LateOptions change
/// later.
class UnitSettings {
 public:
  /// The modules of options().prefetch and backward_prefetch: units keep no module alive.
  using Modules = std::vector<std::weak_ptr<torch::nn::Module>>;

  UnitSettings(
      std::string name,
      UnitOptions options,
      std::optional<RootOptions> root_options,
      std::shared_ptr<const Mesh> mesh);

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const UnitOptions& options() const { return options_; }
  /// Returns the options that hold for the whole model if this is its root.
  const RootOptions& root_options() const {
    static const RootOptions defaults;
    return root_options_ ? *root_options_ : defaults;
  }
  /// Throws if options of a root were given: this unit is inside the one called `root`.
  void check_no_root_options(const std::string& root) const;
  void change(const LateOptions& options);
  const Modules& prefetch() const { return prefetch_; }
  const Modules& backward_prefetch() const { return backward_prefetch_; }
  const Mesh& mesh() const { return *mesh_; }
  const DataAxes& axes() const { return axes_; }
  /// Throws unless the mesh has the data-parallel axes, and no other axis of several ranks.
  void check_mesh() const;
  /// Returns the number of units of this process that were sharded before.
  int64_t sequence() const { return sequence_; }

  /// Returns the granule that the rules give a parameter; its own where they give none.
  Granule granule_of(const UnshardedParameter& parameter) const;
  /// Returns the cut that the rules give a parameter; its own where they give none. Throws, naming
  /// the parameter, unless the cut is valid and the parameter has the shape of its part.
  std::optional<Cut> cut_of(const UnshardedParameter& parameter) const;
  /// Returns the properties that decide which group a parameter belongs to. Throws, naming the
  /// parameter, if it can't be sharded that way.
  GroupTraits traits_of(const UnshardedParameter& parameter) const;

  /// Patterns that have matched nothing in this unit; see check_patterns_match.
  const UnmatchedPatterns& unmatched() const { return unmatched_; }
  void set_unmatched(UnmatchedPatterns patterns) { unmatched_ = std::move(patterns); }

 private:
  std::string name_;
  UnitOptions options_;
  std::optional<RootOptions> root_options_;
  Modules prefetch_;
  Modules backward_prefetch_;
  std::shared_ptr<const Mesh> mesh_;
  DataAxes axes_;
  int64_t sequence_;
  UnmatchedPatterns unmatched_;
};

}  // namespace sherd
