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
#include "sherd/shard/module_ref.h"

namespace sherd {

/// Settings of the gradient watch, which checks each parameter's gradient in each micro-batch, on
/// the device, after the reduction. (Gradients that are not sharded are reduced after the last
/// micro-batch; before that, this rank's own are checked.) It is on by default and never waits for
/// the device. All ranks report a finding at the same point: NaN and infinity on CPU in
/// AdamW::step() of the step that has them; everything else at the end of a later step's last
/// backward, whose own gradients are complete. A gradient that is NaN or infinite throws
/// NotFiniteError, unless AdamW scales the loss and skips such steps itself; a gradient that
/// explodes is a warning on rank 0.
struct WatchOptions {
  /// false turns the watch off; on a GPU, AdamW then skips steps whose gradients are NaN or
  /// infinite without an error.
  bool enabled = true;
  /// Also checks each rank's own gradients before the reduction, so that a finding names the rank.
  /// Reads all full gradients once more. Needs MemoryKind::planned.
  bool before_reduction = false;
  /// Reports a gradient as exploding if its norm on a rank is above this multiple of its mean norm
  /// over earlier steps (at least 10 of them). Above 1; 0 disables the check.
  double exploding = 1000;
};

/// A fault in the gradient of one parameter.
struct SHERD_API Finding {
  std::string parameter;  ///< its full name
  Fault fault = Fault::none;
  int64_t step = 0;               ///< step of this model in this process; the first is 1
  int64_t micro_batch = 0;        ///< micro-batch of the step; the first is 1
  std::optional<int64_t> rank{};  ///< rank whose own gradient it was; empty if unknown

  /// Returns the finding as a sentence.
  std::string text() const;
};

/// The error for gradients that are NaN or infinite, thrown on all ranks unless AdamW scales the
/// loss. sherd::AdamW has changed neither weights nor moments in the step that had them; torch's
/// optimizers do not check and have used them. Training can continue: nothing is left half done.
class SHERD_API NotFiniteError : public c10::Error {
 public:
  NotFiniteError(c10::SourceLocation where, std::string text, std::vector<Finding> findings)
      : c10::Error(where, std::move(text)), findings_(std::move(findings)) {}
  /// Returns the findings, earliest first; empty if only the norm over all parameters is known.
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  std::vector<Finding> findings_;
};

/// The L2 norms of one parameter, over the elements of all ranks.
struct ParameterNorms {
  std::string parameter;  ///< its full name
  double weight = 0;      ///< norm of the main weight
  /// Norm of the main gradient as it is in memory. AdamW leaves it undivided by tokens, multiplied
  /// by the loss scale and unclipped; sherd::step with Loss::per_token has divided it.
  double gradient = 0;
};

/// The sizes of one group of a unit, and this rank's memory for it.
struct GroupReport {
  std::string unit;
  std::string group;
  int64_t parameters = 0;      ///< number of parameters
  int64_t elements = 0;        ///< elements of all its parameters, on all ranks
  int64_t padding = 0;         ///< elements of the full buffer that belong to no parameter
  int64_t model_bytes = 0;     ///< this rank's part of the model weight
  int64_t main_bytes = 0;      ///< this rank's main weight; 0 if it is part of the model weight
  int64_t gradient_bytes = 0;  ///< this rank's part of the main gradient
  int64_t gathered_bytes = 0;  ///< full parameters while gathered; 0 if they are never sharded
  int64_t padding_bytes = 0;   ///< padding in all of the above, on this rank
};

/// Elements of a parameter that ranks should hold alike, and do not.
struct SHERD_API ReplicaDifference {
  std::string parameter;  ///< within the root's module
  std::string weight;     ///< "main weight" or "model weight"
  /// The ranks of the world whose elements are not those of most; all of them if there is no
  /// majority, as with two.
  std::vector<int64_t> ranks{};
  std::vector<int64_t> others{};  ///< those with the elements of most; none without a majority
  std::string text() const;       ///< one sentence, without a full stop
};

/// The bytes that Sherd has allocated for a model on this rank, without the optimizer's.
struct ModelBytes {
  int64_t model_weights = 0;
  int64_t main_weights = 0;  ///< main weights that are not part of a model weight
  int64_t main_gradients = 0;
  int64_t arena = 0;    ///< gathered parameters, full gradients, copies in the reduce dtype
  int64_t control = 0;  ///< messages between ranks, tables of the gradient watch
  int64_t sum() const { return model_weights + main_weights + main_gradients + arena + control; }
  friend bool operator==(const ModelBytes&, const ModelBytes&) = default;
};

// In all functions below `model` is a root; they throw for other modules. The first use of a root
// is collective, see fully_shard.h.

/// Returns what is allocated for the model on this rank now, by kind. AdamW::allocated_bytes has
/// the optimizer's state, groups() the sizes unit by unit, and program(model).bytes() what the
/// program needs. Not collective.
SHERD_API ModelBytes allocated_bytes(ModuleRef model);
/// Returns a sentence about symmetric memory (RootOptions::symmetric): with how many communicators
/// the arena is registered, and whether NCCL can use its symmetric kernels. Empty without it.
SHERD_API std::string symmetric_report(ModuleRef model);

/// Sets how gradients are watched from the next step on. Call it between steps, on all ranks with
/// the same options, which are not compared. Sends nothing, unless the last pass has failed; blocks
/// until the model's communication on this rank is done. Turning the watch off drops findings and
/// mean norms; other changes keep them. Throws, and changes nothing, during a pass, in the middle
/// of a step, after a StepGraph was captured, if `exploding` is neither 0 nor above 1, and if
/// before_reduction is set without MemoryKind::planned.
SHERD_API void watch(ModuleRef model, const WatchOptions& options = {});
/// Returns the findings of all ranks since the last call or report, earliest first, and forgets
/// them: for each parameter, and each rank if it is known, the first one, where a gradient that is
/// not finite comes before an exploding one. At most 64 ranks contribute: the first ones that have
/// findings. Call it between steps or before the update; throws in the middle of a step.
/// Collective; blocks, and waits for the device.
SHERD_API std::vector<Finding> findings(ModuleRef model);
/// Returns the norms of each parameter that was trainable when it was sharded; gradient_norm() and
/// AdamW::gradient_norm() return one norm over all. Call it between steps or before the update;
/// throws in the middle of a step. Collective; blocks, and waits for the device.
SHERD_API std::vector<ParameterNorms> norms(ModuleRef model);
/// Compares checksums of the weights that several ranks hold alike: HSDP's replicas, weights that
/// are not sharded, and what of a model with cut parameters is not cut. Model weights that are not
/// sharded while the optimizer's state is (ZeRO-1 and 2) are compared in the middle of a step only,
/// best before its update: after one each rank has its own elements alone. Returns what differs,
/// which is the same on all ranks; nothing in an emulated world. Throws during a pass. Collective;
/// blocks, and waits for the device; 16 bytes travel for each parameter and rank.
SHERD_API std::vector<ReplicaDifference> verify_replicas(ModuleRef model);
/// Returns the sizes of all groups, unit by unit. Not collective; does not block.
SHERD_API std::vector<GroupReport> groups(ModuleRef model);
/// Formats the sizes as a table with a line of totals.
SHERD_API std::string to_text(const std::vector<GroupReport>& groups);

}  // namespace sherd
