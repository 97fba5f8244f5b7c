// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sherd {

/// Reads the texts of ranks, one by one from the lowest rank on, until it returns a verdict.
using Decide = std::function<std::optional<std::string>(int64_t rank, const std::string& text)>;

/// A communicator whose ranks can exchange text on the host, for errors: on the device, even a copy
/// may wait for a collective that never ends.
class HasHostExchange {
 public:
  virtual ~HasHostExchange() = default;
  /// Collective: each rank gives a text, rank 0 decides, and all ranks return its verdict (empty if
  /// there is none). Blocks, at most as long as an operation may take, and throws then.
  virtual std::string decide_on_host(const std::string& text, const Decide& decide) = 0;
};

/// The same over a store. The keys that begin with `key` serve one call.
std::string decide_over_store(
    c10d::Store& store,
    const std::string& key,
    int64_t rank,
    int64_t size,
    const std::string& text,
    const Decide& decide,
    std::chrono::milliseconds timeout);

}  // namespace sherd
