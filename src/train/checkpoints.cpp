// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoints.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <sstream>

#include "configuration/setup.h"
#include "data/across_ranks.h"
#include "files/byte_text.h"
#include "train/earlier_run.h"
#include "train/metrics.h"
#include "train/pretrained_files.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSaveEvery = 1000;  // steps, where train.save_every is absent

SlicesOf slices_of(const LanguageModel& model) {
  return [&model](const std::string& name, at::IntArrayRef shape) {
    return model.slices_of(name, shape);
  };
}

std::string finished_text(const std::string& folder, int64_t step) {
  return c10::str(
      folder, " is step ", step, " of train.steps = ", step,
      ": this run is finished. To train on, raise train.steps; to start over, choose another "
      "train.out or set train.resume = \"none\"");
}

}  // namespace

Checkpoints::Checkpoints(
    const Configuration& configuration,
    const World& world,
    LanguageModel& model,
    AdamW& optimizer,
    int64_t data,
    Say say)
    : configuration_(configuration),
      train_(configuration.train),
      export_dtype_(export_dtype_of(configuration)),
      world_(world),
      model_(model),
      optimizer_(optimizer),
      say_(std::move(say)),
      data_(data),
      in_background_(
          train_.save == "background" || (train_.save == "auto" && world.device().is_cuda())),
      snapshots_(train_, world) {
  if (in_background_ && (train_.save_every.value_or(0) > 0 || train_.snapshot_every > 0 ||
                         world.launcher() != Launcher::emulated)) {
    const auto bytes = background_.reserve(model, &optimizer);
    say_("background saves use " + byte_text(bytes) + " of host memory on each rank");
  }
}

std::string Checkpoints::folder_of(int64_t step) const {
  return (fs::path(train_.out) / ("step-" + std::to_string(step))).string();
}

std::string Checkpoints::folder_to_resume() const {
  if (train_.resume == "none") return "";
  if (train_.resume != "auto") return train_.resume;
  // The first rank looks; others may see a folder of the network a moment later.
  int64_t newest = -1;
  int64_t in_memory = -1;
  if (world_.rank() == 0) {
    const auto found = find_checkpoints(train_.out);
    if (!found.empty()) newest = found.back().first;
    in_memory = snapshots_.newest();
  }
  const auto both = numbers_of_first_rank(world_, {newest, in_memory});
  if (both[1] > both[0]) return snapshots_.folder_of(both[1]);
  return both[0] < 0 ? "" : folder_of(both[0]);
}

void Checkpoints::load_from(const std::string& folder, LoadedState& state) {
  try {
    state = load(model_, &optimizer_, folder, {.slices = slices_of(model_)});
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    // One that is sound may be right for another model: only damage is a reason to remove it.
    const bool damaged =
        text.find("damaged") != std::string::npos || text.find("missing") != std::string::npos;
    TORCH_CHECK_VALUE(
        train_.resume != "auto" || !damaged, text, ": remove ", folder,
        " to continue from the checkpoint before it, or set train.resume");
    throw;
  }
}

Checkpoints::Place Checkpoints::place_in(const LoadedState& state, const std::string& folder) {
  const auto number = [&](const char* name) {
    const auto found = state.numbers.find(name);
    TORCH_CHECK_VALUE(
        found != state.numbers.end() && found->second >= 0, "[train] ", folder,
        "/state.json has no ", name, ": it is not a checkpoint of sherd train");
    return found->second;
  };
  return {number("step"), number("samples"), state.numbers};
}

Checkpoints::Place Checkpoints::reload() {
  LoadedState state;
  load_from(latest_, state);
  return place_in(state, latest_);
}

Checkpoints::Place Checkpoints::resume() {
  const auto folder = folder_to_resume();
  const auto changes = text_of_first_rank(world_, [&] {
    texts_ = pretrained_files(configuration_, model_, saved_dtype_of(configuration_), folder);
    texts_["configuration.toml"] = to_text(with_absolute_paths(configuration_));
    return folder.empty() ? "" : compare_with_earlier_run(configuration_, folder, data_);
  });
  if (folder.empty()) return {};
  LoadedState state;
  load_from(folder, state);
  const auto place = place_in(state, folder);
  TORCH_CHECK_VALUE(
      place.step <= train_.steps, "[train] ", folder, " has step ", place.step,
      ", but train.steps = ", train_.steps, ": give more steps, or train.resume = \"none\"");
  say_(
      place.step == train_.steps ? finished_text(folder, place.step) : "continuing from " + folder);
  std::istringstream lines(changes);
  for (std::string line; std::getline(lines, line);) say_(line);
  extend(folder, state, place);
  if (train_.resume == "auto") {
    // A run that was killed may have left more than are to stay.
    saving_ = place.step;
    if (folder == folder_of(place.step)) newest_ = place.step;
    latest_ = folder;
    remove_old();
  }
  return place;
}

/// Finds where the schedule of a run that continues has begun.
void Checkpoints::extend(const std::string& folder, const LoadedState& state, const Place& place) {
  const auto number = [&](const char* name) {
    const auto found = state.numbers.find(name);
    return found == state.numbers.end() ? int64_t{0} : found->second;
  };
  const auto& optim = configuration_.optim;
  if (optim.on_extend != "restart") return;
  schedule_start_ = number("schedule_start");
  const bool was_finished = number("steps") == place.step;
  if (!was_finished || place.step == train_.steps) return;
  schedule_start_ = place.step;
  if (optim.schedule == "constant" && optim.warmup == 0) return;  // it is the same
  say_(c10::str(
      folder, " was the end of its run: the learning rate begins anew (optim.schedule = \"",
      optim.schedule, "\" for ", train_.steps - place.step, " steps, optim.warmup = ", optim.warmup,
      "); optim.on_extend = \"stretch\" does without"));
}

bool Checkpoints::due(int64_t step, bool last) const {
  // A world that isn't there has nothing worth keeping, unless asked for.
  if (world_.launcher() == Launcher::emulated && train_.save_every.value_or(0) == 0) return false;
  const int64_t every = train_.save_every.value_or(kSaveEvery);
  return last || (every > 0 && step % every == 0);
}

SaveOptions Checkpoints::options(const Place& place) const {
  SaveOptions result;
  result.slices = slices_of(model_);
  result.export_dtype = export_dtype_;
  result.export_fp8 = export_fp8_of(configuration_, model_);
  result.texts = texts_;
  result.numbers = {{"step", place.step},    {"samples", place.samples},
                    {"seed", train_.seed},   {"data", data_},
                    {"steps", train_.steps}, {"schedule_start", schedule_start_}};
  result.numbers.insert(place.decisions.begin(), place.decisions.end());
  return result;
}

bool Checkpoints::attempt(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    say_(std::string("checkpoint not saved: ") + error.what_without_backtrace());
    return false;
  }
  return true;
}

bool Checkpoints::save_in(const std::string& folder, const Place& place, Kind kind) {
  const auto begin = [&] {
    if (in_background_) return background_.begin(model_, &optimizer_, folder, options(place));
    sherd::save(model_, &optimizer_, folder, options(place));
  };
  finish();
  kind_ = kind;
  saving_into_ = folder;
  if (kind != Kind::best) saving_ = place.step;
  if (!attempt(begin)) return false;
  if (kind == Kind::step) newest_ = place.step;
  if (kind != Kind::best) latest_ = folder;
  if (!in_background_) note_saved();
  return true;
}

std::string Checkpoints::best() const {
  return (fs::path(train_.out) / "best").string();
}

void Checkpoints::save_snapshot(const Place& place) {
  if (!snapshots_.due(place.step) || background_.under_way()) return;
  save_in(snapshots_.folder_of(place.step), place, Kind::snapshot);
}

bool Checkpoints::advance() {
  bool whole = false;
  const bool fine = attempt([&] { whole = background_.advance(); });
  if (whole) note_saved();
  return fine;
}

bool Checkpoints::finish() {
  if (!background_.under_way()) return true;
  const bool done = attempt([&] { background_.finish(); });
  if (done) note_saved();
  return done;
}

/// The checkpoint is on the disk, or the snapshot in memory.
void Checkpoints::note_saved() const {
  if (world_.rank() == 0 && kind_ != Kind::best) {
    snapshots_.remove_up_to(saving_, kind_ == Kind::snapshot ? 1 : 0);
  }
  if (kind_ == Kind::snapshot) return;
  say_("saved " + saving_into_);
  if (saved_) saved_(saving_into_);
  if (kind_ == Kind::best) return;
  remove_old();
}

void Checkpoints::remove_old() const {
  if (train_.keep == 0 || world_.rank() != 0) return;
  try {
    keep_newest(train_.out, train_.keep, saving_);
  } catch (const c10::Error& error) {
    say_(error.what_without_backtrace());
  } catch (const std::exception& error) {
    say_(error.what());
  }
}

}  // namespace sherd
