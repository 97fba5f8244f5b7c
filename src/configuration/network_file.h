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

/// The speed and memory of one device; 0: unknown.
struct DeviceSpeed {
  double tflops = 0;            ///< sustained TFLOP/s of matrix products
  double tflops_fp8 = 0;        ///< sustained TFLOP/s of those in fp8; 0: as fast as others
  double memory_bandwidth = 0;  ///< bytes per second
  int64_t memory = 0;           ///< bytes
};

/// A description of a network, for any mesh: links inside a node and between nodes. The folder
/// networks/ has some, with their sources.
struct NetworkFile {
  std::string name;
  int64_t node = 0;                  ///< ranks of a node; 0: all ranks are in one
  bool overlaps = true;              ///< transfers run while the processor computes
  Link inside;                       ///< link between ranks of a node
  Link between;                      ///< link between nodes; bandwidth of each rank
  std::map<std::string, Link> axes;  ///< links of mesh axes, by name; replace the above
  DeviceSpeed device;                ///< the devices of this network
  std::string source;                ///< the file it was read from
};

/// Reads a TOML file. Throws a ConfigurationError with all problems.
SHERD_API NetworkFile read_network(const std::string& path);
/// Returns the description as TOML, which read_network() reads back.
SHERD_API std::string to_text(const NetworkFile& file);

/// Returns the link of each axis of a mesh. `axes` are names and sizes, outermost first: the last
/// varies fastest, and consecutive ranks share a node. Other axes, such as flattened ones, get the
/// link of an axis over all ranks. See Note [Which link an axis runs over] in
/// src/configuration/network_file.cpp. Throws for sizes below 1 and repeated names.
SHERD_API Network
network_of(const NetworkFile& file, const std::vector<std::pair<std::string, int64_t>>& axes);

}  // namespace sherd
