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
/// stored: the shape of the whole parameter, of which this rank may have a part
/// (ParameterRule::cut). The slices, each in row-major order, follow one another in the parameter.
/// Usually it is one whole tensor; a packed parameter (queries, keys and values in one) is several.
/// A buffer without slices, such as a table that the constructor fills, is neither saved nor
/// loaded.
using SlicesOf = std::function<std::vector<TensorSlice>(const std::string& name, at::IntArrayRef)>;

/// Options of save(). Must be equal on all ranks.
struct SaveOptions {
  SlicesOf slices{};  ///< default: each parameter and buffer is a tensor of its own name
  /// Dtype of the floating-point parameters in the model files; default: that of the main weights.
  /// With another dtype, the main weights are saved in files of their own as well.
  std::optional<c10::ScalarType> export_dtype{};
  /// Patterns of parameters whose tensors the model files have in fp8 instead: e4m3, with a scale
  /// for each 128 × 128 elements in a tensor of that name with "_scale_inv" behind it (fp32, a
  /// power of two), as DeepSeek's folders have. Matrices only; '*' matches any text, dots included.
  /// The main weights are saved in files of their own as well. Throws for a pattern that matches no
  /// matrix.
  std::vector<std::string> export_fp8{};
  /// Contents of small files to write next to the model, such as config.json, by file name.
  std::map<std::string, std::string> texts{};
  /// Further numbers to store in state.json, such as the run's step, by name. save() throws for the
  /// names that it uses itself: format, version, ranks, files, texts, optimizer, crc32c.
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
/// optimizer's state unless `optimizer` is null. Each rank writes its own shards (replicas share
/// the work), so all ranks must see the same file system. Registered buffers, such as running
/// means, are those of rank 0, in their own dtype.
///
/// Everything is written to `<folder>.part`, which replaces the folder at the end, so an error or a
/// crash leaves the old folder as it was; both need room on the disk meanwhile. On file systems
/// that can't exchange two names, the folder has another name for a moment (`.part` or `.old`);
/// load() and find_checkpoints() look there too.
///
/// Collective; blocks until the checkpoint is on the disk, and waits for the device. Call it
/// between steps: throws during a pass, in the middle of a step, and if parameters have no values.
/// An error in preparing or writing throws on all ranks and names the file or parameter; `.part` is
/// then removed if possible, and training can continue.
SHERD_API void save(
    ModuleRef model,
    const AdamW* optimizer,
    const std::string& folder,
    const SaveOptions& options = {});

/// Loads a checkpoint into a sharded model and its optimizer, and publishes the weights: the next
/// pass computes with them. The number of ranks, the strategy and the precision may differ from
/// those of the save, and so may the cuts of parameters; parameters on the meta device need no
/// initialise() before. Every rank gets
/// the buffers of the saving rank 0. If `optimizer` is null, its state is not loaded. Each rank
/// reads its own elements only and checks them against their checksums. Returns the numbers of
/// state.json.
///
/// Collective; blocks, and waits for the device. Call it after an update: drops gradients that wait
/// for one, and throws during a pass and in the middle of a step. Throws also if a tensor is
/// missing, has another shape or is not used by the model, if data is damaged, and if `optimizer`
/// is given but the checkpoint has no optimizer state. Such an error throws on all ranks and names
/// the tensor. Model and optimizer are then partly loaded, and the weights are not published: load
/// again before you train.
SHERD_API LoadedState
load(ModuleRef model, AdamW* optimizer, const std::string& folder, const LoadOptions& options = {});

/// A function that returns `count` elements of a named tensor, from element `begin` of the
/// flattened tensor on: flat, on the CPU, in any dtype (they are converted).
using ReadElements =
    std::function<at::Tensor(const std::string& tensor, int64_t begin, int64_t count)>;

/// A function that throws if a named tensor can't be read.
using CheckTensor = std::function<void(const std::string& tensor)>;

/// Loads the parameters of a sharded model from another source, such as files in another format,
/// and publishes them: `read` is called on each rank for its own elements only, at most 2^20 at a
/// time. `check`, unless empty, is called on each rank for every tensor that it reads, before any
/// rank changes the model. Both run on a thread of their own. Optimizer and buffers do not change.
/// Collective; blocks. Call it when load() may be called. If one of them throws on one rank,
/// load_elements() throws on all; after an error of `check` the model is as before, after one of
/// `read` it is partly loaded.
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
/// begin() after an update, before_update() before each following update, and advance(), at the
/// same steps on all ranks, until it returns true.
///
/// One thread at a time may use it. The model must outlive the save.
class SHERD_API BackgroundSave {
 public:
  BackgroundSave();
  /// Blocks until this rank's thread has finished the current stage. A save that is under way is
  /// not completed and leaves `<folder>.part`: call finish() on all ranks first.
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Allocates the host memory for the copies now rather than in the first begin(), and returns its
  /// bytes on this rank; pinned memory if the model is on a GPU. It is kept and used for one save
  /// after another. Not collective. Throws while a save is under way.
  int64_t reserve(ModuleRef model, const AdamW* optimizer);
  /// Begins to save the present state, as save() does. Collective. Blocks until the model's
  /// communication and the optimizer's last step are done and rank 0 has made the folder. On a GPU
  /// the copies run on a stream of their own after the work of the current stream, and buffers are
  /// copied on the current stream; on CPU the copies are made before it returns. The next forward
  /// may begin on return. Throws as save() does in preparing; no save is under way then. Also
  /// throws if the previous save is not finished; that save then continues.
  void begin(
      ModuleRef model,
      const AdamW* optimizer,
      const std::string& folder,
      const SaveOptions& options = {});
  /// Makes the current stream wait for the copies; the host does not wait. Call it before each
  /// update (or StepGraph::replay) while a save is under way, with the update's stream as the
  /// current one. No effect otherwise. Not collective.
  void before_update();
  /// Returns whether a save has begun and is not finished: the same on all ranks.
  bool under_way() const;
  /// Returns whether this rank has finished its part of the current stage, so that advance() would
  /// not wait for it. True if no save is under way. Ranks may differ: let them agree before some
  /// call advance().
  bool idle() const;
  /// Waits for the current stage and starts the next: first all ranks write their parts, then rank
  /// 0 completes the folder and puts it in place. Returns true when the save is finished, and at
  /// once, without communication, if none is under way. Collective; blocks until every rank's work
  /// for the current stage is done; ranks that wait longer than WorldOptions::operation_timeout
  /// throw, so look at idle() first. Throws on all ranks if one has failed to write: the save is
  /// then over, `.part` is removed if possible, an older checkpoint of that name is untouched, and
  /// training can continue.
  bool advance();
  /// Calls advance() until the save is finished; no effect if none is under way. Collective; blocks
  /// until the checkpoint is on the disk. Throws as advance() does.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- folders ------------------------------------------------------------------------------------

// None of these is collective: one rank calls them.

/// Returns the complete checkpoints `step-<number>` in a folder with their paths, by ascending
/// number. A checkpoint is complete if its state can be read and every file is there with its size;
/// checksums are not compared. Returns an empty list if the folder does not exist.
SHERD_API std::vector<std::pair<int64_t, std::string>> find_checkpoints(const std::string& folder);
/// Removes a folder with everything in it. Renames it to `….removed` first, so that a partly
/// removed folder never looks like a checkpoint. No effect if it does not exist. Throws if a file
/// can't be removed, and names it.
SHERD_API void remove_checkpoint(const std::string& folder);
/// Removes all but the last `keep` complete checkpoints of a folder, and remains of older ones that
/// a crash has left. Ignores steps above `newest`, which belong to another run. Does nothing if
/// `keep` is 0 or below, or if there are fewer than `keep` complete checkpoints. If something can't
/// be removed, it removes the rest, then throws and names it; later calls try again without an
/// error.
SHERD_API void keep_newest(const std::string& folder, int64_t keep, int64_t newest);

/// Reads every byte of a checkpoint and compares checksums. Throws, naming the file, if a byte is
/// not as it was written.
SHERD_API void verify_checkpoint(const std::string& folder);

}  // namespace sherd
