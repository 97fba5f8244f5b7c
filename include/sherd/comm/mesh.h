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
  std::string name;  ///< name of the axis
  int64_t size = 1;  ///< number of ranks along this axis
  friend bool operator==(const Axis&, const Axis&) = default;
};

/// The ranks of a world as a grid with named axes (a device mesh), the last axis varying fastest. A
/// handle that is cheap to copy and keeps the world open. Axes may have any names;
/// fully_shard() takes meshes of data-parallel axes alone: `dp` and `dp_outer`, or those that its
/// options name. sub() and flatten() make such meshes out of others.
///
/// Functions that open communicators are collective: all ranks of the world call them at the same
/// point, and they block. Functions that take an axis throw if the mesh does not have it.
class SHERD_API Mesh {
 public:
  /// Opens a communicator along each axis. Collective. Throws if the product of the sizes is not
  /// the world's size, or if a name is empty or repeated; on all ranks, if some make another mesh.
  Mesh(World world, std::vector<Axis> axes);

  /// Returns the world whose ranks the mesh arranges.
  const World& world() const { return world_; }
  /// Returns the axes in their order.
  const std::vector<Axis>& axes() const { return axes_; }
  /// Returns whether the mesh has an axis of this name.
  bool has(const std::string& axis) const;
  /// Returns the number of ranks along an axis.
  int64_t size(const std::string& axis) const;
  /// Returns this rank's index along an axis.
  int64_t coordinate(const std::string& axis) const;
  /// Returns the world's ranks along an axis through this rank, in the order of their coordinates.
  const std::vector<int64_t>& ranks(const std::string& axis) const;
  /// Returns the number of ranks in the mesh, the product of its axes.
  int64_t size() const;

  /// Returns the communicator among the ranks that differ from this one along `axis` only.
  Communicator& communicator(const std::string& axis) const;
  /// Returns another communicator along `axis`, one for each purpose. The first call for a purpose
  /// opens it and is collective; later calls return the same one. One thread at a time.
  Communicator& communicator(const std::string& axis, const std::string& purpose) const;
  /// Opens another communicator along `axis`, for operations that must not queue behind others.
  /// Collective.
  std::shared_ptr<Communicator> new_communicator(
      const std::string& axis, const std::string& purpose) const;

  /// Returns the mesh of some of the axes, in the given order, at this rank's coordinates along the
  /// others. Shares the communicators; not collective. Throws for axes that the mesh lacks or that
  /// are given twice.
  Mesh sub(const std::vector<std::string>& axes) const;
  /// Returns a mesh in which one axis, `name`, replaces the given ones; it runs over all their
  /// ranks, the last given axis varying fastest, and takes the place of the first given one.
  /// Collective. Throws if `axes` is empty, and if `name` is in use.
  Mesh flatten(const std::vector<std::string>& axes, const std::string& name) const;

 private:
  struct Line;  // the ranks along an axis through this one, and their communicators
  Mesh(World world, std::vector<Axis> axes, std::vector<std::shared_ptr<const Line>> lines);
  const Line& line(const std::string& axis) const;

  World world_;
  std::vector<Axis> axes_;
  std::vector<std::shared_ptr<const Line>> lines_;
};

/// The names of the data-parallel axes of a mesh.
struct DataAxes {
  std::string inner = "dp";  ///< axis that is sharded over first
  std::string outer;         ///< second axis, of HSDP and HFSDP; empty: none
};

}  // namespace sherd
