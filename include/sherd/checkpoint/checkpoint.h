// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/export.h"
#include "sherd/optim/adamw.h"
#include "sherd/shard/module_ref.h"

namespace sherd {

/// A rectangular slice of a tensor in a checkpoint.
struct TensorSlice {
  std::string tensor;          ///< its name in the checkpoint
  std::vector<int64_t> shape;  ///< shape of the whole tensor
  /// For each dim the first index and one past the last; empty: all of the tensor.
  std::vector<std::pair<int64_t, int64_t>> ranges{};
};

/// A function that returns the slices in which a parameter or buffer of this full name and shape is
/// stored. The slices, each in row-major order, follow one another in the parameter. Usually it is
/// one whole tensor; a packed parameter (queries, keys and values in one) is several. A buffer
/// without slices, such as a table that the constructor fills, is neither saved nor loaded.
using SlicesOf = std::function<std::vector<TensorSlice>(const std::string& name, at::IntArrayRef)>;

/// Options of save(). Must be equal on all ranks.
struct SaveOptions {
  SlicesOf slices{};  ///< default: each parameter and buffer is a tensor of its own name
  /// Dtype of the floating-point parameters in the model files; default: that of the main weights.
  /// With another dtype, the main weights are saved in files of their own as well.
  std::optional<c10::ScalarType> export_dtype{};
  /// Contents of small files to write next to the model, such as config.json, by file name.
  std::map<std::string, std::string> texts{};
  /// Further numbers to store in state.json, such as the run's step, by name.
  std::map<std::string, int64_t> numbers{};
};

/// Options of load(). Must be equal on all ranks.
struct LoadOptions {
  SlicesOf slices{};  ///< as in SaveOptions when the checkpoint was saved
};

/// The contents of a checkpoint besides tensors.
struct LoadedState {
  std::map<std::string, int64_t> numbers;  ///< SaveOptions::numbers, and others of state.json
};

/// Writes a checkpoint folder: the model in the format of Hugging Face (model-*.safetensors, an
/// index, and `texts`), the main weights (master weights) if their dtype differs, and the
/// optimizer's state unless `optimizer` is null. Each rank writes its own shards; registered
/// buffers, such as running means, are those of rank 0, in their own dtype.
///
/// Everything is written to `<folder>.part`, which replaces the folder at the end, so an error or a
/// crash leaves the old folder as it was. On file systems that can't exchange two names, the folder
/// has another name for a moment (`.part` or `.old`); load() and find_checkpoints() look there too.
/// Collective; blocks. Call it between steps. An error throws on all ranks and names the file;
/// training can continue.
SHERD_API void save(
    ModuleRef model,
    const AdamW* optimizer,
    const std::string& folder,
    const SaveOptions& options = {});

/// Loads a checkpoint into a sharded model and its optimizer. The number of ranks, the strategy and
/// the precision may differ from those of the save. Every rank gets the buffers of the saving rank
/// 0. If `optimizer` is null, its state is not loaded. All data is checked against its checksums.
/// Collective; blocks. Call it between steps. Throws if a tensor is missing, has another shape or
/// is not used by the model, if data is damaged, and if `optimizer` is given but the checkpoint has
/// no optimizer state. An error throws on all ranks and names the tensor; the model is then partly
/// loaded.
SHERD_API LoadedState
load(ModuleRef model, AdamW* optimizer, const std::string& folder, const LoadOptions& options = {});

/// A function that returns `count` elements of a named tensor, from element `begin` of the
/// flattened tensor on: flat, on the CPU.
using ReadElements =
    std::function<at::Tensor(const std::string& tensor, int64_t begin, int64_t count)>;

/// A function that throws if a named tensor can't be read.
using CheckTensor = std::function<void(const std::string& tensor)>;

/// Loads the parameters of a sharded model from another source, such as files in another format:
/// `read` is called on each rank for its own elements only. `check`, unless empty, is called on
/// each rank for every tensor that it reads, before any rank changes the model. Optimizer and
/// buffers do not change. Collective; blocks. If one of them throws on one rank, it throws on all;
/// after an error of `read` the model is partly loaded.
SHERD_API void load_elements(
    ModuleRef model,
    const SlicesOf& slices,
    const ReadElements& read,
    const CheckTensor& check = {});

/// As save() above, with the optimizer as a reference.
inline void save(
    ModuleRef model,
    const AdamW& optimizer,
    const std::string& folder,
    const SaveOptions& options = {}) {
  save(model, &optimizer, folder, options);
}
/// As load() above, with the optimizer as a reference.
inline LoadedState load(
    ModuleRef model, AdamW& optimizer, const std::string& folder, const LoadOptions& options = {}) {
  return load(model, &optimizer, folder, options);
}

/// Saves checkpoints while training goes on (asynchronous checkpointing): the state is copied to
/// host memory during the next step, and a thread writes it from there. A training loop calls
/// begin() after a step, before_update() before the next update, and advance() until it is done.
class SHERD_API BackgroundSave {
 public:
  BackgroundSave();
  /// Blocks until this rank's thread has finished the current stage; does not complete the save.
  /// Call finish() on all ranks before.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Allocates the host memory for the copies now rather than in the first begin(), and returns its
  /// bytes on this rank; pinned memory if the model is on a GPU. Throws while a save is under way.
  int64_t reserve(ModuleRef model, const AdamW* optimizer);
  /// Begins to save, as save() does. Call it between steps. Collective; blocks until work that is
  /// under way is done and the ranks agree, but on a GPU not for the copies, which run on a stream
  /// of their own. Throws if the save before is not finished.
  void begin(
      ModuleRef model,
      const AdamW* optimizer,
      const std::string& folder,
      const SaveOptions& options = {});
  /// Makes the current stream wait for the copies; the host does not wait. Call it before weights
  /// or moments change.
  void before_update();
  /// Returns whether a save has begun and is not finished.
  bool under_way() const;
  /// Returns whether this rank has finished its part of the current stage, so that advance() would
  /// not wait for it. True if no save is under way.
  bool idle() const;
  /// Continues with the next stage: first all ranks write their parts, then rank 0 completes the
  /// folder and puts it in place. Returns true when the save is finished, and at once, without
  /// communication, if none is under way. Collective; blocks until every
  /// rank's work for the current stage is done. Throws on all ranks if one has failed; the save is
  /// then over.
  bool advance();
  /// Completes the save; no effect if none is under way. Collective; blocks. Throws as advance()
  /// does.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- folders ------------------------------------------------------------------------------------

// None of these is collective: one rank calls them.

/// Returns the complete checkpoints `step-<number>` in a folder with their paths, by ascending
/// number. A checkpoint counts as complete if its state can be read and every file is there with
/// its size; checksums are not compared. Returns none if the folder does not exist.
SHERD_API std::vector<std::pair<int64_t, std::string>> find_checkpoints(const std::string& folder);
/// Removes a folder with everything in it. Renames it to `….removed` first, so that a partly
/// removed folder never looks like a checkpoint. No effect if it does not exist. Throws if a file
/// can't be removed, and names it.
SHERD_API void remove_checkpoint(const std::string& folder);
/// Removes all but the last `keep` complete checkpoints of a folder, and remains of older ones that
/// a crash has left. Ignores steps above `newest`, which belong to another run. Does nothing if
/// `keep` is 0. If something can't be removed, it removes the rest, then throws and names it; later
/// calls try again without an error.
SHERD_API void keep_newest(const std::string& folder, int64_t keep, int64_t newest);

/// Reads every byte of a checkpoint and compares checksums. Throws, naming the file, if a byte is
/// not as it was written.
SHERD_API void verify_checkpoint(const std::string& folder);

}  // namespace sherd
