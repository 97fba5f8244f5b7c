// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

/// Settings for the parameters that match a pattern; absent settings are those of AdamWOptions. For
/// each setting, the last matching rule that sets it wins. A rule that matches no parameter of
/// the model, frozen ones included, throws. The ranges are those of AdamWOptions.
struct AdamWRule {
  /// Pattern of full parameter names; '*' matches any text, dots included.
  std::string match;
  std::optional<double> lr_factor{};  ///< factor on the learning rate; 0 or more; default: 1
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<double> eps{};
  std::optional<double> weight_decay{};
};

/// Dynamic loss scaling, which keeps small gradients from vanishing in fp16 (as GradScaler does). A
/// step whose gradients overflow is skipped and lowers the scale; many good ones raise it.
struct LossScaling {
  double initial = 65536;   ///< scale at the start; above 0
  double growth = 2;        ///< factor on the scale after `interval` good updates; 1 or more
  double backoff = 0.5;     ///< factor on the scale after an overflow; in (0, 1)
  int64_t interval = 2000;  ///< good updates in a row before the scale grows; 1 or more
};

/// Options of AdamW. Must be equal on all ranks. Values out of range throw.
struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate; 0 or more
  double beta1 = 0.9;          ///< decay of the first moment; in [0, 1)
  double beta2 = 0.999;        ///< decay of the second moment; in [0, 1)
  double eps = 1e-8;           ///< added to the root of the second moment; 0 or more
  double weight_decay = 0.01;  ///< weight decay, decoupled from the gradient; 0 or more
  /// Clips gradients to this norm over all parameters and ranks; 0 disables clipping.
  double max_norm = 0;
  c10::ScalarType states = c10::kFloat;  ///< dtype of the moments: fp32 or bf16
  std::vector<AdamWRule> rules{};        ///< exceptions for some parameters
  std::optional<LossScaling> scaling{};  ///< loss scaling; default: none
};

/// The bytes that AdamW has allocated on this rank.
struct OptimizerBytes {
  int64_t moments = 0;
  int64_t control = 0;  ///< tables of the update, counters
  int64_t sum() const { return moments + control; }
  friend bool operator==(const OptimizerBytes&, const OptimizerBytes&) = default;
};

/// AdamW over the shards of a model: one pass clips, updates, decays and publishes. On a GPU a step
/// never blocks the host: learning rate, step count, norm and loss scale stay on the device.
///
/// A parameter that is frozen (`set_requires_grad(false)`, on all ranks) when the last backward of
/// a step begins is left out of the update: its weight and moments stay as they are, and training
/// continues from them when it is unfrozen, as with torch's AdamW. The first step after such a
/// change blocks until the device is done.
class SHERD_API AdamW {
 public:
  /// Allocates the moments of this rank's elements and prepares the updates. `model` is a root:
  /// shard the whole model first. Throws for other modules, for options out of range, and if a
  /// main weight or main gradient is not fp32, bf16 or fp16. Collective if it is the first use of
  /// the root. Does not keep the model alive: step() throws if it is gone.
  explicit AdamW(ModuleRef model, const AdamWOptions& options = {});
  ~AdamW();
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;

  /// Clips the gradients, updates the weights and publishes them: the next pass computes with them.
  /// Call it after the step's last backward. Collective. On a GPU it runs on the current stream and
  /// does not block. Throws, and changes nothing, during a pass, if backward passes are missing,
  /// and for tokens that are missing, unexpected or negative.
  ///
  /// If a gradient is NaN or infinite, or the tokens of all ranks are 0, neither weights nor
  /// moments change, and the step ends without an update. Without loss scaling, on CPU this
  /// function then throws: c10::ValueError if there were no tokens, else NotFiniteError, which
  /// names the parameter if the gradient watch is on. On a GPU the gradient watch throws
  /// NotFiniteError at the end of a later step's last backward; if the watch is off, or there were
  /// no tokens, there is no error. Training can continue after it.
  void step(const StepOptions& options = {});

  /// Sets the learning rate for the following steps, and for replays of a captured one. Takes
  /// effect on the current stream; does not block. Not collective; set the same on all ranks.
  /// Throws if it is negative.
  void set_lr(double lr);
  /// Sets this rank's tokens for the next replay of a captured step (StepGraph) with
  /// Loss::per_token, in place of those that step() was given in the capture. Takes effect on the
  /// current stream; does not block. Throws if they are negative.
  void set_tokens(int64_t tokens);
  /// Returns the loss times the loss scale, to call backward() on; without loss scaling, the loss.
  /// Does not block.
  at::Tensor scale(const at::Tensor& loss) const;

  // Each of these four blocks until the steps enqueued so far are done. Not collective.
  double lr() const;          ///< learning rate
  int64_t updates() const;    ///< updates made so far; skipped ones don't count
  double loss_scale() const;  ///< current scale; 1 without loss scaling
  /// Returns the L2 norm of the last step's gradient over all parameters and ranks: unscaled,
  /// divided by tokens with Loss::per_token, before clipping. The step has computed it anyway, so
  /// nothing is sent; sherd::gradient_norm is for other optimizers.
  double gradient_norm() const;
  /// Returns a copy of that norm on the device, one element in fp64, without blocking.
  at::Tensor gradient_norm_on_device() const;

  /// This rank's elements of one parameter's moments, flat.
  struct Moments {
    std::string name;
    at::Tensor first;
    at::Tensor second;
  };
  /// Returns the moments of all parameters, in the order of sherd::named_parameters; views, not
  /// copies.
  const std::vector<Moments>& moments() const;
  /// The state of the optimizer beyond weights and moments, as checkpoints store it.
  struct Progress {
    int64_t updates = 0;    ///< updates made
    double loss_scale = 0;  ///< 0: no loss scaling
    int64_t healthy = 0;    ///< good updates since the loss scale changed
    /// By parameter name: updates that it missed because it was frozen; only those above 0.
    std::map<std::string, int64_t> missed{};
  };
  /// Returns the state. Blocks until the steps enqueued so far are done.
  Progress progress() const;
  /// Sets the state, between steps; use the same on all ranks. A loss scale of 0 leaves the current
  /// one. If `missed` changes, a captured step must be captured again. Takes effect on the current
  /// stream; not collective. Throws, and changes nothing, if `updates` or `healthy` is negative or
  /// `loss_scale` is negative or not finite; `missed` is not checked.
  void set_progress(const Progress& progress);
  /// Returns what is allocated for the optimizer on this rank. sherd::allocated_bytes has the
  /// model's.
  OptimizerBytes allocated_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
