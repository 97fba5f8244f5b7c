// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/writer.h"
#include "shard/sharded_model.h"

namespace sherd {

/// The three stages of saving a checkpoint, for save() and BackgroundSave: all ranks prepare, each
/// writes its part, and rank 0 writes the state. Ranks begin a stage after all have ended the one
/// before, which the caller sees to (collective.h).
class SaveStages {
 public:
  /// Blocks until the model is idle. Throws, naming `caller`, if it is within a step or has no
  /// values.
  SaveStages(
      const torch::nn::Module& model,
      const std::string& folder,
      const SaveOptions& options,
      const char* caller);

  const ShardedModel& model() const { return model_; }
  bool is_first_rank() const;

  /// First stage: plans the files and makes the unfinished folder. `reserve`, if not empty, is
  /// called in between. Returns the model's parameters, with the optimizer's state unless it is
  /// null. Collective; an error throws on all ranks.
  using Reserve = std::function<void(const std::vector<StoredParameter>&)>;
  std::vector<StoredParameter> prepare(
      const torch::nn::Module& model, const AdamW* optimizer, const Reserve& reserve = {});
  /// Second stage: writes this rank's bytes of `parameters`, which are what prepare() returned or
  /// copies of it.
  void write_part(const std::vector<StoredParameter>& parameters) const;
  /// Third stage: on rank 0 writes the small files and gives the folder its name. No effect on
  /// other ranks.
  void write_state() const;

  /// Runs `function`. If it throws, no rank may be writing any more: rank 0 removes the unfinished
  /// folder, and the error is passed on.
  template <class Function>
  void discard_on_error(Function&& function) const {
    try {
      function();
    } catch (const c10::Error&) {
      if (is_first_rank()) unfinished_.discard();
      throw;
    }
  }

 private:
  ShardedModel model_;
  UnfinishedFolder unfinished_;
  SaveOptions options_;
  FilePlan plan_;
  Fp8Export fp8_;
  std::optional<AdamW::Progress> progress_;
};

}  // namespace sherd
