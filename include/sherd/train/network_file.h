// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/plan/network.h"

namespace sherd {

/// What one device computes with; 0 where nobody has said so.
struct DeviceSpeed {
  double tflops = 0;            ///< sustained, of matrix products
  double memory_bandwidth = 0;  ///< bytes per second
  int64_t memory = 0;           ///< bytes
};

/// A described network: links inside a node and between nodes, whatever the mesh will be. The
/// folder networks has some, with their sources.
struct NetworkFile {
  std::string name;
  int64_t node = 0;                  ///< ranks that share the inner link; 0: all ranks
  bool overlaps = true;              ///< transfers take no time of the processor that computes
  Link inside;                       ///< between ranks of a node
  Link between;                      ///< between nodes; the bandwidth is each rank's share
  std::map<std::string, Link> axes;  ///< of mesh axes by name; these come before the above
  DeviceSpeed device;
  std::string source;  ///< the file it was read from
};

/// Reads a TOML file. Throws a ConfigurationError that names every problem.
SHERD_API NetworkFile read_network(const std::string& path);
/// As TOML that reads back the same.
SHERD_API std::string to_text(const NetworkFile& file);

/// The link of each axis of a mesh, whose axes come outermost first: the last varies fastest, and
/// consecutive ranks share a node. Axes that are not named, such as flattened ones, get the link of
/// all ranks together. See Note [Which link an axis runs over].
SHERD_API Network
network_of(const NetworkFile& file, const std::vector<std::pair<std::string, int64_t>>& axes);

}  // namespace sherd
