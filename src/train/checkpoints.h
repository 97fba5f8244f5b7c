// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "configuration/configuration.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/comm/world.h"
#include "sherd/models/language_model.h"
#include "sherd/optim/adamw.h"

namespace sherd {

/// The checkpoints of a run: `step-<number>` in its folder.
class Checkpoints {
 public:
  /// Reports progress to the user.
  using Say = std::function<void(const std::string&)>;
  /// `data`: on the first rank, a fingerprint of the training data, by which other data is known
  /// when the run is resumed.
  Checkpoints(
      const Configuration& configuration,
      const World& world,
      LanguageModel& model,
      AdamW& optimizer,
      int64_t data,
      Say say);

  /// Where a run is.
  struct Place {
    int64_t step = 0;
    int64_t samples = 0;  ///< that it has trained on
  };
  /// From the checkpoint that train.resume means, if any. Says what has changed since, and throws
  /// where that makes it another run. Collective.
  Place resume();

  /// Whether a step ends with one.
  bool due(int64_t step, bool last) const;
  /// Whether the newest one, saved or begun by this run or gone on from, is of this step.
  bool has(int64_t step) const { return newest_ == step; }
  std::string newest() const { return folder_of(newest_); }
  /// Collective. An error is said, and training goes on: false.
  bool save(const Place& place);
  /// Before the optimizer changes anything.
  void before_update() { background_.before_update(); }
  /// This rank has more to write.
  bool busy() const { return !background_.idle(); }
  bool under_way() const { return background_.under_way(); }
  /// When no rank is busy: goes on with what is under way. Collective. False: it has failed.
  bool advance();
  /// Waits for what is under way. Collective.
  bool finish();

 private:
  std::string folder_to_resume() const;
  void load_from(const std::string& folder, LoadedState& state);
  std::string folder_of(int64_t step) const;
  SaveOptions options(const Place& place) const;
  bool attempt(const std::function<void()>& action);
  void remove_old() const;

  Configuration configuration_;
  TrainSection train_;
  std::optional<c10::ScalarType> export_dtype_;
  World world_;
  LanguageModel& model_;
  AdamW& optimizer_;
  Say say_;
  int64_t data_;
  bool in_background_;
  std::map<std::string, std::string> texts_;  // on the first rank
  int64_t newest_ = -1;                       // step
  int64_t saving_ = 0;                        // the step of the last one
  BackgroundSave background_;
};

}  // namespace sherd
