// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sherd {

/// A function that is called with the text of each rank, from the lowest rank on, until it returns
/// a verdict.
using Decide = std::function<std::optional<std::string>(int64_t rank, const std::string& text)>;

/// An interface that a communicator for CUDA also implements if its ranks can exchange text without
/// the device. Errors need it: on the device even a copy may wait for a collective that never ends.
class HasHostExchange {
 public:
  virtual ~HasHostExchange() = default;
  /// Sends this rank's text to rank 0, where `decide` is called, and returns its verdict, which is
  /// the same on all ranks and empty if there is none. Collective; uses no stream. Blocks, and
  /// throws after WorldOptions::operation_timeout. One thread at a time.
  virtual std::string decide_on_host(const std::string& text, const Decide& decide) = 0;
};

/// Does the same over a store. The keys that begin with `key` serve one call.
std::string decide_over_store(
    c10d::Store& store,
    const std::string& key,
    int64_t rank,
    int64_t size,
    const std::string& text,
    const Decide& decide,
    std::chrono::milliseconds timeout);

}  // namespace sherd
