// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoints.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <filesystem>

#include "train/metrics.h"
#include "train/setup.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

SlicesOf slices_of(const LanguageModel& model) {
  return [&model](const std::string& name, at::IntArrayRef shape) {
    return model.slices_of(name, shape);
  };
}

}  // namespace

Checkpoints::Checkpoints(
    const Configuration& configuration,
    const World& world,
    LanguageModel& model,
    AdamW& optimizer,
    Say say)
    : train_(configuration.train),
      export_dtype_(export_dtype_of(configuration)),
      world_(world),
      model_(model),
      optimizer_(optimizer),
      say_(std::move(say)),
      in_background_(
          train_.save == "background" || (train_.save == "auto" && world.device().is_cuda())) {
  if (in_background_ && (train_.save_every > 0 || world.launcher() != Launcher::emulated)) {
    const auto bytes = background_.reserve(model, &optimizer);
    say_("saving in the background takes " + bytes_text(bytes) + " of host memory on each rank");
  }
}

std::string Checkpoints::folder_of(int64_t step) const {
  return (fs::path(train_.out) / ("step-" + std::to_string(step))).string();
}

Checkpoints::Place Checkpoints::resume() {
  std::string folder = train_.resume;
  if (folder == "none") return {};
  if (folder == "auto") {
    // The first rank looks; others may see a folder of the network a moment later.
    int64_t newest = -1;
    if (world_.rank() == 0) {
      const auto found = find_checkpoints(train_.out);
      if (!found.empty()) newest = found.back().first;
    }
    auto value = at::empty({1}, at::TensorOptions().dtype(at::kLong).device(world_.device()));
    value.fill_(newest);
    world_.communicator().broadcast(value, 0).synchronize();
    newest = value.item<int64_t>();
    if (newest < 0) return {};
    folder = folder_of(newest);
  }
  LoadedState state;
  try {
    state = load(model_, &optimizer_, folder, {.slices = slices_of(model_)});
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(
        train_.resume != "auto", error.what_without_backtrace(), ": remove ", folder,
        " to go on from the checkpoint before it, or set train.resume");
    throw;
  }
  const auto number = [&](const char* name) {
    const auto found = state.numbers.find(name);
    TORCH_CHECK_VALUE(
        found != state.numbers.end() && found->second >= 0, "[train] ", folder,
        "/state.json has no ", name, ": it is no checkpoint of sherd train");
    return found->second;
  };
  const Place place{number("step"), number("samples")};
  TORCH_CHECK_VALUE(
      place.step <= train_.steps, "[train] ", folder, " has step ", place.step,
      ", but train.steps = ", train_.steps, ": give more steps, or train.resume = \"none\"");
  if (number("seed") != train_.seed) {
    say_("train.seed was " + std::to_string(number("seed")) + ": the order of the samples changes");
  }
  say_("goes on from " + folder);
  if (train_.resume == "auto") {
    // A run that was killed may have left more than are to stay.
    saving_ = place.step;
    remove_old();
  }
  return place;
}

bool Checkpoints::due(int64_t step, bool last) const {
  // A world that isn't there has nothing worth keeping, unless asked for.
  if (world_.launcher() == Launcher::emulated && train_.save_every == 0) return false;
  return last || (train_.save_every > 0 && step % train_.save_every == 0);
}

SaveOptions Checkpoints::options(const Place& place) const {
  SaveOptions result;
  result.slices = slices_of(model_);
  result.export_dtype = export_dtype_;
  if (const auto config = model_.config()) result.texts["config.json"] = *config;
  result.numbers = {{"step", place.step}, {"samples", place.samples}, {"seed", train_.seed}};
  return result;
}

bool Checkpoints::attempt(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    say_(std::string("not saved: ") + error.what_without_backtrace());
    return false;
  }
  return true;
}

bool Checkpoints::save(const Place& place) {
  const auto folder = folder_of(place.step);
  if (in_background_) {
    finish();
    saving_ = place.step;
    return attempt([&] { background_.begin(model_, &optimizer_, folder, options(place)); });
  }
  saving_ = place.step;
  const bool done = attempt([&] { sherd::save(model_, &optimizer_, folder, options(place)); });
  if (done) remove_old();
  return done;
}

bool Checkpoints::advance() {
  bool whole = false;
  const bool fine = attempt([&] { whole = background_.advance(); });
  if (whole) remove_old();
  return fine;
}

bool Checkpoints::finish() {
  if (!background_.under_way()) return true;
  const bool done = attempt([&] { background_.finish(); });
  if (done) remove_old();
  return done;
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
