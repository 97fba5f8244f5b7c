// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "checkpoint/collective.h"
#include "checkpoint/save_stages.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {

struct BackgroundSave::State {
  std::optional<ShardedModel> model;    // that `copies` has room for
  std::optional<SaveStages> stages;     // of the last save
  std::vector<StoredParameter> copies;  // on the host; the memory serves one save after another
  std::optional<c10::Stream> stream;
  std::optional<c10::Event> copied;
  enum class Stage : uint8_t { none, parts, state };
  Stage stage = Stage::none;
  std::thread worker;
  std::atomic<bool> idle = true;
  std::exception_ptr problem;

  ~State() { join(); }
  void join() {
    if (worker.joinable()) worker.join();
  }
  /// Work of this rank for a stage, beside the training.
  void start(Stage next, const std::function<void()>& work);
  void reserve(const std::vector<StoredParameter>& parameters);
  bool fits(const std::vector<StoredParameter>& parameters) const;
  void copy(const std::vector<StoredParameter>& parameters);
};

void BackgroundSave::State::reserve(const std::vector<StoredParameter>& parameters) {
  const bool pinned =
      !model->world().device().is_cpu();  // or copies would not be in the background
  copies = parameters;
  for (auto& parameter : copies) {
    for (auto& piece : parameter.pieces.values) {
      if (!piece.defined()) continue;
      piece = at::empty(piece.sizes(), piece.options().device(at::kCPU).pinned_memory(pinned));
    }
  }
}

bool BackgroundSave::State::fits(const std::vector<StoredParameter>& parameters) const {
  return std::equal(
      copies.begin(), copies.end(), parameters.begin(), parameters.end(),
      [](const StoredParameter& copy, const StoredParameter& parameter) {
        for (const Set set : kSets) {
          const auto& [one, other] = std::tie(copy.pieces[set], parameter.pieces[set]);
          if (one.defined() != other.defined()) return false;
          if (one.defined() && (one.sizes() != other.sizes() || one.dtype() != other.dtype())) {
            return false;
          }
        }
        return true;
      });
}

/// A GPU copies on a stream of its own, once the current one has come this far. Buffers are copied
/// on the current one: the next forward may change them.
void BackgroundSave::State::copy(const std::vector<StoredParameter>& parameters) {
  const c10::NoGradGuard no_grad;
  const auto copy_all = [&](bool buffers) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].buffer.defined() != buffers) continue;
      for (const Set set : kSets) {
        const auto& piece = parameters[i].pieces[set];
        if (piece.defined()) copies[i].pieces[set].copy_(piece, /*non_blocking=*/true);
      }
    }
  };
  copy_all(/*buffers=*/true);
  const auto device = model->world().device();
  std::optional<c10::StreamGuard> guard;
  if (!device.is_cpu()) {
    const c10::impl::VirtualGuardImpl devices(device.type());
    if (!stream) stream = devices.getStreamFromGlobalPool(device);
    c10::Event ready(device.type());
    ready.record(devices.getStream(device));
    ready.block(*stream);
    guard.emplace(*stream);
  }
  copy_all(/*buffers=*/false);
  if (!device.is_cpu()) {
    copied.emplace(device.type());
    copied->record(*stream);
  }
}

void BackgroundSave::State::start(Stage next, const std::function<void()>& work) {
  join();
  stage = next;
  problem = nullptr;
  idle = !work;
  if (!work) return;
  const auto run = [this, work] {
    try {
      work();
    } catch (...) {
      problem = std::current_exception();
    }
    idle = true;
  };
  try {
    worker = std::thread(run);
  } catch (const std::system_error&) {  // no thread is to be had: then at once
    run();
  }
}

BackgroundSave::BackgroundSave() : state_(std::make_unique<State>()) {}
BackgroundSave::~BackgroundSave() = default;

int64_t BackgroundSave::reserve(ModuleRef model, const AdamW* optimizer) {
  TORCH_CHECK(!under_way(), "[checkpoint] reserve while a save is under way: finish it");
  state_->model.emplace(*model, "BackgroundSave");
  state_->reserve(stored_parameters(*model, *state_->model, optimizer, {}, Purpose::save));
  int64_t bytes = 0;
  for (const auto& parameter : state_->copies) {
    for (const auto& piece : parameter.pieces.values) {
      if (piece.defined()) bytes += static_cast<int64_t>(piece.nbytes());
    }
  }
  return bytes;
}

void BackgroundSave::begin(
    ModuleRef model,
    const AdamW* optimizer,
    const std::string& folder,
    const SaveOptions& options) {
  TORCH_CHECK(
      !under_way(), "[checkpoint] ", folder, ": the save before is not finished: finish it");
  auto& state = *state_;
  const auto& stages = state.stages.emplace(*model, folder, options, "BackgroundSave");
  const bool fresh = std::exchange(state.model, stages.model()) != stages.model();
  const auto parameters =
      state.stages->prepare(*model, optimizer, [&](const std::vector<StoredParameter>& found) {
        if (fresh || !state.fits(found)) state.reserve(found);
      });
  // After the ranks have talked: what they say would wait behind the copies.
  for (size_t i = 0; i < parameters.size(); ++i) state.copies[i].slices = parameters[i].slices;
  state.copy(parameters);
  state.start(State::Stage::parts, [&state] {
    if (state.copied) state.copied->synchronize();
    state.stages->write_part(state.copies);
  });
}

void BackgroundSave::before_update() {
  if (!under_way() || !state_->copied) return;
  const auto device = state_->model->world().device();
  state_->copied->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool BackgroundSave::under_way() const {
  return state_->stage != State::Stage::none;
}
bool BackgroundSave::idle() const {
  return state_->idle;
}

bool BackgroundSave::advance() {
  auto& state = *state_;
  if (!under_way()) return true;
  state.join();
  const auto stage = std::exchange(state.stage, State::Stage::none);
  state.stages->discard_on_error([&] {
    on_all_ranks(*state.model, [&] {
      if (state.problem) std::rethrow_exception(state.problem);
    });
  });
  if (stage == State::Stage::state) return true;
  std::function<void()> work;
  if (state.stages->is_first_rank()) work = [&state] { state.stages->write_state(); };
  state.start(State::Stage::state, work);
  return false;
}

void BackgroundSave::finish() {
  while (!advance()) {
  }
}

}  // namespace sherd
