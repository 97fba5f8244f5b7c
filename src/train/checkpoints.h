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
#include "train/snapshots.h"

namespace sherd {

/// The checkpoints of a run: `step-<number>` in its folder.
class Checkpoints {
 public:
  /// Reports progress to the user.
  using Say = std::function<void(const std::string&)>;
  /// `data`: on the first rank, a fingerprint of the training data, so that a resumed run notices
  /// other data.
  Checkpoints(
      const Configuration& configuration,
      const World& world,
      LanguageModel& model,
      AdamW& optimizer,
      int64_t data,
      Say say);

  /// The position of a run.
  struct Place {
    int64_t step = 0;
    int64_t samples = 0;                         ///< samples that it has trained on
    std::map<std::string, int64_t> decisions{};  ///< see BadSteps::numbers()
  };
  /// Loads the checkpoint that train.resume names, if any, and returns its position. Reports the
  /// keys that have changed since, and throws if they make it another run. Collective.
  Place resume();

  /// Loads the newest checkpoint or snapshot that this run has saved or loaded, between steps, and
  /// returns its position. Collective; blocks.
  Place reload();
  /// Returns the step after which the learning rate's schedule has begun: 0, or the last step of a
  /// finished run that was given more.
  int64_t schedule_start() const { return schedule_start_; }

  /// Returns whether a checkpoint is saved after a step.
  bool due(int64_t step, bool last) const;
  /// Returns whether the newest checkpoint on the disk (saved, begun or loaded by this run) is of
  /// this step.
  bool has(int64_t step) const { return newest_ == step; }
  std::string newest() const { return folder_of(newest_); }
  /// Saves, or begins to save, a checkpoint. Returns false after an error, which is reported;
  /// training can continue. Collective.
  bool save(const Place& place) { return save_in(folder_of(place.step), place, Kind::step); }
  /// The same into the folder `best`, in the place of the one before.
  bool save_best(const Place& place) { return save_in(best(), place, Kind::best); }
  std::string best() const;
  /// Does the same in memory, if a snapshot is due and no save is under way. After an error, which
  /// is reported, training can continue. Collective.
  void save_snapshot(const Place& place);
  /// `saved` is called when a checkpoint is on the disk.
  void on_saved(std::function<void(const std::string& folder)> saved) { saved_ = std::move(saved); }
  /// To be called before each update; see BackgroundSave.
  void before_update() { background_.before_update(); }
  /// Returns whether this rank is still writing.
  bool busy() const { return !background_.idle(); }
  bool under_way() const { return background_.under_way(); }
  /// Continues a save that is under way; call it when no rank is busy. Returns false if the save
  /// has failed. Collective.
  bool advance();
  /// Completes a save that is under way. Returns false if it has failed. Collective; blocks.
  bool finish();

 private:
  std::string folder_to_resume() const;
  enum class Kind : uint8_t { step, snapshot, best };
  bool save_in(const std::string& folder, const Place& place, Kind kind);
  void load_from(const std::string& folder, LoadedState& state);
  static Place place_in(const LoadedState& state, const std::string& folder);
  std::string folder_of(int64_t step) const;
  SaveOptions options(const Place& place) const;
  bool attempt(const std::function<void()>& action);
  void extend(const std::string& folder, const LoadedState& state, const Place& place);
  void note_saved() const;
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
  Snapshots snapshots_;
  Kind kind_ = Kind::step;      // of the last one
  std::string saving_into_;     // its folder
  std::string latest_;          // the folder of the last one that was saved, begun or loaded
  int64_t schedule_start_ = 0;  // step
  std::function<void(const std::string& folder)> saved_;
  BackgroundSave background_;
};

}  // namespace sherd
