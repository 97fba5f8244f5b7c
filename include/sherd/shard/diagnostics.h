// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/kernels/fault.h"

namespace torch::nn {
class Module;
template <class Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace sherd {

/// How the gradients of a model are watched. They always are, unless said otherwise: each parameter
/// in each micro-batch, on the device, after the reduction. What is found is told on all ranks
/// alike: what is not finite by AdamW on CPU at once; else at the end of a later step's last
/// backward, whose gradients are complete all the same. A gradient that is not finite is an error
/// (unless AdamW scales the loss, where it is expected), one that explodes a warning of rank 0.
struct WatchOptions {
  bool enabled = true;
  /// Also looks at each rank's gradients before the reduction, so that the rank is named. Reads all
  /// gradients once more.
  bool before_reduction = false;
  /// A gradient explodes when its norm is so many times its mean over earlier steps (at least 10);
  /// 0: never.
  double exploding = 1000;
};

struct SHERD_API Finding {
  std::string parameter;
  Fault fault = Fault::none;
  int64_t step = 0;               ///< from 1 on
  int64_t micro_batch = 0;        ///< from 1 on
  std::optional<int64_t> rank{};  ///< whose gradient it was, where that is known

  std::string text() const;
};

/// Thrown on all ranks alike where gradients are not finite and no loss is scaled. The step that
/// had them has changed neither weights nor the state of AdamW.
class SHERD_API NotFiniteError : public c10::Error {
 public:
  NotFiniteError(c10::SourceLocation where, std::string text, std::vector<Finding> findings)
      : c10::Error(where, std::move(text)), findings_(std::move(findings)) {}
  /// Earliest first; none where only the norm over all parameters is known.
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  std::vector<Finding> findings_;
};

/// A parameter's norms over all elements, whichever ranks hold them.
struct ParameterNorms {
  std::string parameter;
  double weight = 0;    ///< of the main weight
  double gradient = 0;  ///< as reduced in the last step: tokens, scale and clipping come later
};

/// A group of a unit: its sizes, and what this rank holds of it.
struct GroupReport {
  std::string unit;
  std::string group;
  int64_t parameters = 0;
  int64_t elements = 0;  ///< of all its parameters
  int64_t padding = 0;   ///< elements that belong to no parameter
  int64_t model_bytes = 0;
  int64_t main_bytes = 0;  ///< beyond the model weight's; 0 where that is shared
  int64_t gradient_bytes = 0;
  int64_t gathered_bytes = 0;  ///< while the unit is gathered; 0 where it always is
  int64_t padding_bytes = 0;   ///< of all the above, on this rank
};

/// What Sherd has allocated for a model on this rank, in bytes.
struct ModelBytes {
  int64_t model_weights = 0;
  int64_t main_weights = 0;  ///< beyond those that lie inside model weights
  int64_t main_gradients = 0;
  int64_t arena = 0;    ///< gathered parameters, full gradients, copies that are reduced
  int64_t control = 0;  ///< what ranks tell each other, and what gradients are watched with
  int64_t sum() const { return model_weights + main_weights + main_gradients + arena + control; }
  friend bool operator==(const ModelBytes&, const ModelBytes&) = default;
};

// `model` is a root.

SHERD_API ModelBytes model_bytes(const torch::nn::Module& model);
/// Of symmetric memory: with how many communicators it is registered, and what NCCL makes of it;
/// empty where it is none.
SHERD_API std::string symmetric_report(const torch::nn::Module& model);

/// Between steps; all ranks alike.
SHERD_API void watch(const torch::nn::Module& model, const WatchOptions& options = {});
/// What was found on all ranks since last asked or told, earliest first. Between steps, or before
/// the update. Collective; blocks.
SHERD_API std::vector<Finding> findings(const torch::nn::Module& model);
/// Of the trainable parameters. Between steps, or before the update. Collective; blocks.
SHERD_API std::vector<ParameterNorms> norms(const torch::nn::Module& model);
SHERD_API std::vector<GroupReport> groups(const torch::nn::Module& model);
/// As a table for people.
SHERD_API std::string to_text(const std::vector<GroupReport>& groups);

template <class Contained>
void watch(const torch::nn::ModuleHolder<Contained>& model, const WatchOptions& options = {}) {
  watch(static_cast<const torch::nn::Module&>(*model), options);
}
template <class Contained>
std::vector<Finding> findings(const torch::nn::ModuleHolder<Contained>& model) {
  return findings(static_cast<const torch::nn::Module&>(*model));
}
template <class Contained>
std::vector<ParameterNorms> norms(const torch::nn::ModuleHolder<Contained>& model) {
  return norms(static_cast<const torch::nn::Module&>(*model));
}
template <class Contained>
std::vector<GroupReport> groups(const torch::nn::ModuleHolder<Contained>& model) {
  return groups(static_cast<const torch::nn::Module&>(*model));
}

}  // namespace sherd
