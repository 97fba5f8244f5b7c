// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/blocks/attention.h"
#include "sherd/comm/mesh.h"
#include "sherd/shard/options.h"

namespace sherd {

/// The rules for weights of which each rank along `tp` has a part (LanguageModel::rules): they are
/// sharded over all ranks with the same part. Without such ranks there are none.
class PartRules {
 public:
  /// Makes the mesh of those ranks. Collective with more than one rank along `cp` and `tp`.
  explicit PartRules(const std::optional<Mesh>& mesh);

  /// Adds those for the weights of blocks. `module`: the name that they have in all layers.
  void add_attention(const std::string& module, const AttentionOptions& options);
  void add_feed_forward(const std::string& module, int64_t dim, int64_t ffn);

  const std::vector<ParameterRule>& rules() const { return rules_; }

 private:
  /// A rank has an equal part of each of the blocks, which follow one another along `dim`.
  void add(
      const std::string& match,
      std::vector<int64_t> shape,
      int64_t dim,
      const std::vector<int64_t>& blocks);

  int64_t ranks_ = 1;
  int64_t rank_ = 0;
  std::optional<Mesh> lines_;
  DataAxes axes_;
  std::vector<ParameterRule> rules_;
};

}  // namespace sherd
