// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

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

namespace sherd {

/// A box of a tensor as a checkpoint names it.
struct TensorSlice {
  std::string tensor;
  std::vector<int64_t> shape;  ///< of the whole tensor
  /// In each dim from, and up to; none: all of the tensor.
  std::vector<std::pair<int64_t, int64_t>> ranges{};
};

/// As what a parameter or a buffer is saved: its elements are those of the slices, one after
/// another, each row by row. Most are one whole tensor; a packed one is several, a part of one
/// another range. A buffer without slices, such as a table that its constructor fills, is neither
/// saved nor loaded.
using SlicesOf = std::function<std::vector<TensorSlice>(const std::string& name, at::IntArrayRef)>;

struct SaveOptions {
  SlicesOf slices{};  ///< none: each parameter and buffer is a tensor of its name
  /// Of the model files; none: that of the main weights.
  std::optional<c10::ScalarType> export_dtype{};
  /// Small files beside the model, such as config.json, by name.
  std::map<std::string, std::string> texts{};
  /// What else a run has to know, such as its step: kept by name in state.json.
  std::map<std::string, int64_t> numbers{};
};

struct LoadOptions {
  SlicesOf slices{};  ///< as it was saved
};

/// What was known beside the tensors.
struct LoadedState {
  std::map<std::string, int64_t> numbers;
};

/// Writes a checkpoint: a folder with the model as Hugging Face has it (model-*.safetensors, their
/// index, and `texts`), the main weights where they have another dtype, and the optimizer's state.
/// Each rank writes its own bytes, straight from its shards; registered buffers, such as running
/// means, are written by rank 0 in their own dtype. A copy that is whole takes the place of the
/// folder at the end, so whatever happens, the folder is a whole checkpoint or what it was.
/// Collective; blocks. An error is thrown on all ranks, with the file in it, and the model can go
/// on. `optimizer` may be null.
SHERD_API void save(
    const torch::nn::Module& model,
    const AdamW* optimizer,
    const std::string& folder,
    const SaveOptions& options = {});

/// Gives a sharded model and its optimizer what a checkpoint has, whatever number of ranks,
/// strategy and precision it was saved with. Every rank gets the buffers that rank 0 had. Every
/// byte that is read is checked. Collective; blocks. An error is thrown on all ranks, naming the
/// tensor; the model is then half loaded.
/// `optimizer` may be null: its state is left alone.
SHERD_API LoadedState load(
    const torch::nn::Module& model,
    AdamW* optimizer,
    const std::string& folder,
    const LoadOptions& options = {});

/// Returns `count` elements of a tensor, from number `begin` on: flat, on the CPU.
using ReadElements =
    std::function<at::Tensor(const std::string& tensor, int64_t begin, int64_t count)>;

/// Gives the parameters of a sharded model what `read` returns, such as elements of other people's
/// files. Each rank asks for its own elements and no others. Optimizer and buffers are left alone.
/// Collective; blocks. What `read` throws is thrown on all ranks; the model is then half loaded.
SHERD_API void load_elements(
    const torch::nn::Module& model, const SlicesOf& slices, const ReadElements& read);

inline void save(
    const torch::nn::Module& model,
    const AdamW& optimizer,
    const std::string& folder,
    const SaveOptions& options = {}) {
  save(model, &optimizer, folder, options);
}
inline LoadedState load(
    const torch::nn::Module& model,
    AdamW& optimizer,
    const std::string& folder,
    const LoadOptions& options = {}) {
  return load(model, &optimizer, folder, options);
}
/// A holder of any kind; the optimizer as a pointer or a reference.
template <class Contained, class Optimizer>
void save(
    const torch::nn::ModuleHolder<Contained>& model,
    const Optimizer& optimizer,
    const std::string& folder,
    const SaveOptions& options = {}) {
  save(static_cast<const torch::nn::Module&>(*model), optimizer, folder, options);
}
template <class Contained, class Optimizer>
LoadedState load(
    const torch::nn::ModuleHolder<Contained>& model,
    Optimizer& optimizer,
    const std::string& folder,
    const LoadOptions& options = {}) {
  return load(static_cast<const torch::nn::Module&>(*model), optimizer, folder, options);
}

/// Saving while training goes on: the state is copied to host memory beside the next step's
/// computation, and written from there.
class SHERD_API BackgroundSave {
 public:
  BackgroundSave();
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Takes the host memory that the copies need, now instead of with the first save: how many
  /// bytes.
  int64_t reserve(const torch::nn::Module& model, const AdamW* optimizer);
  /// Begins; between two steps. The one before must be done. Collective; does not wait for the
  /// copies.
  void begin(
      const torch::nn::Module& model,
      const AdamW* optimizer,
      const std::string& folder,
      const SaveOptions& options = {});
  /// Before weights or moments change: the current stream waits for the copies.
  void before_update();
  bool under_way() const;
  /// This rank has nothing to do for it but to call advance(), with all others.
  bool idle() const;
  /// When all ranks are idle, the next stage: each has written its bytes, then the first rank puts
  /// the checkpoint in its place. Collective; waits for this rank's work if there is any. True: it
  /// is done. Throws on all ranks where one has failed, and then it is over.
  bool advance();
  /// All that is left. Collective; blocks.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- folders
// -------------------------------------------------------------------------------------

/// Checkpoints in a folder, `step-<number>` each, by rising number: those that look whole (their
/// state can be read, and every file is there with its size).
SHERD_API std::vector<std::pair<int64_t, std::string>> find_checkpoints(const std::string& folder);
/// Why a folder is no whole checkpoint, in words; nothing: it is one. Reads no tensors.
SHERD_API std::optional<std::string> why_not_whole(const std::string& folder);
/// Removes a folder and all that is in it. It has another name first, so that no half checkpoint
/// has a checkpoint's name. Throws, naming the file, where something stays.
SHERD_API void remove_checkpoint(const std::string& folder);
/// Of the checkpoints of a folder up to step `newest`, removes all but the last `keep`, and what
/// crashes have left of older ones. Later steps are another run's. Throws after all that can be
/// removed is, naming what stays; later calls try that again and say nothing.
SHERD_API void keep_newest(const std::string& folder, int64_t keep, int64_t newest);

/// Reads every byte of a checkpoint and throws, naming the file, where one is not what was written.
SHERD_API void verify_checkpoint(const std::string& folder);

}  // namespace sherd
