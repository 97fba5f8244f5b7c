// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "sherd/comm/communicator.h"
#include "sherd/comm/world.h"
#include "sherd/export.h"

namespace sherd {

/// One axis of a mesh.
struct Axis {
  std::string name;
  int64_t size = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

/// The ranks of a world as a grid with named axes, the last one varying fastest. A cheap handle.
///
/// Making a mesh, a communicator or a flattened axis is collective: all ranks of the world do it at
/// the same point. Names in use: `dp_outer`, `dp`, `tp`, `cp`, `ep`.
class SHERD_API Mesh {
 public:
  /// The sizes multiply to the world's size. Throws naming axes and sizes otherwise.
  Mesh(World world, std::vector<Axis> axes);

  const World& world() const { return world_; }
  const std::vector<Axis>& axes() const { return axes_; }
  bool has(const std::string& axis) const;
  int64_t size(const std::string& axis) const;
  /// This rank's place along an axis.
  int64_t coordinate(const std::string& axis) const;
  /// The product of all its axes.
  int64_t size() const;

  /// Among the ranks that differ from this one along that axis only.
  Communicator& communicator(const std::string& axis) const;
  /// The one for a purpose: opened when first asked for, then shared by all who name the purpose.
  Communicator& communicator(const std::string& axis, const std::string& purpose) const;
  /// Another communicator along the same axis, for operations that must not queue behind the
  /// others.
  std::shared_ptr<Communicator> new_communicator(
      const std::string& axis, const std::string& purpose) const;

  /// The mesh of some of its axes, in the given order, at this rank's place along the others.
  /// Shares the communicators; not collective.
  Mesh sub(const std::vector<std::string>& axes) const;
  /// A mesh where these axes, in the given order, are replaced by one, `name`, that runs over all
  /// of them.
  Mesh flatten(const std::vector<std::string>& axes, const std::string& name) const;

 private:
  struct Line;  // an axis with its ranks and communicator
  Mesh(World world, std::vector<Axis> axes, std::vector<std::shared_ptr<const Line>> lines);
  const Line& line(const std::string& axis) const;

  World world_;
  std::vector<Axis> axes_;
  std::vector<std::shared_ptr<const Line>> lines_;
};

}  // namespace sherd
