// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <set>

#include "checkpoint/collective.h"
#include "checkpoint/fp8_export.h"
#include "checkpoint/reader.h"
#include "checkpoint/slices.h"
#include "checkpoint/stored_model.h"

namespace sherd {
namespace {

constexpr int64_t kAtOnce = 1 << 20;  // elements that are converted or sent to a device together

class Loader {
 public:
  Loader(const std::string& folder, CheckpointReader::Check check) : reader_(folder, check) {}

  void load(const StoredParameter& parameter, Set set) {
    const auto& piece = parameter.pieces[set];
    for (const auto& slice : parameter.slices) find(set, slice, parameter);
    const int64_t end = parameter.begin + piece.numel();
    each_run(parameter, parameter.begin, end, [&](const Run& run) {
      const auto& tensor = *wanted(set, *run.tensor);
      for (int64_t done = 0; done < run.length;) {
        const int64_t count = std::min(run.length - done, kAtOnce);
        const auto bytes = reader_.read(tensor, run.in_tensor + done, count);
        const auto values = at::from_blob(
            const_cast<unsigned char*>(bytes.data()), {count}, at::TensorOptions(tensor.dtype));
        piece.narrow(0, run.in_parameter + done - parameter.begin, count).copy_(values);
        done += count;
      }
    });
    const auto& buffer = parameter.buffer;
    if (buffer.defined() && !piece.is_alias_of(buffer)) {  // it is not contiguous
      buffer.detach().copy_(piece.view(buffer.sizes()));
    }
  }

  /// What the checkpoint has and nobody asked for.
  void check_all_taken(bool optimizer) const {
    for (const Set set : kSets) {
      const bool of_optimizer = set == Set::first_moment || set == Set::second_moment;
      if (of_optimizer && !optimizer) continue;
      for (const auto& [name, tensor] : reader_.tensors(set)) {
        if (is_scale_of_taken(name)) continue;
        TORCH_CHECK_VALUE(
            taken_.contains(name), "[checkpoint] ", reader_.folder(), " has a tensor '", name,
            "' (", to_text(set), "), which the model has no parameter or buffer for");
      }
    }
  }

  LoadedState state() const {
    LoadedState result;
    for (const auto& [name, value] : reader_.state().items()) {
      if (value.is_number_integer()) result.numbers[name] = value.get<int64_t>();
    }
    return result;
  }

  AdamW::Progress progress() const {
    const auto found = reader_.state().find("optimizer");
    TORCH_CHECK_VALUE(
        found != reader_.state().end() && found->is_object(), "[checkpoint] ", reader_.folder(),
        " has no optimizer's state: it was saved without one");
    try {
      auto scale = found->at("loss_scale").get<double>();
      // Before there was "scaled", a loss without a scale was saved with 1.
      if (!found->contains("scaled") && scale == 1) scale = 0;
      return {
          found->at("updates").get<int64_t>(), scale, found->at("healthy").get<int64_t>(),
          found->value("missed", std::map<std::string, int64_t>())};
    } catch (const Json::exception& error) {
      TORCH_CHECK_VALUE(
          false, "[checkpoint] ", reader_.folder(), "/state.json: optimizer: ", error.what());
    }
  }

 private:
  /// The scales of a weight that the model files have in fp8 (SaveOptions::export_fp8).
  bool is_scale_of_taken(const std::string& name) const {
    const auto suffix = Fp8Export::scales_of("");
    return name.ends_with(suffix) && taken_.contains(name.substr(0, name.size() - suffix.size()));
  }

  /// Main weights are those of the model where the model has them in the same dtype.
  const PlannedTensor* wanted(Set set, const std::string& name) const {
    for (const Set one : {set, set == Set::main ? Set::model : set}) {
      const auto found = reader_.tensors(one).find(name);
      if (found != reader_.tensors(one).end()) return &found->second;
    }
    return nullptr;
  }

  void find(Set set, const TensorSlice& slice, const StoredParameter& parameter) {
    const auto* tensor = wanted(set, slice.tensor);
    const bool buffer = parameter.buffer.defined();
    TORCH_CHECK_VALUE(
        tensor, "[checkpoint] ", reader_.folder(), " has no tensor '", slice.tensor, "' (",
        to_text(set), "), which ", buffer ? "buffer" : "parameter", " '", parameter.name, "' needs",
        buffer ? ": to keep the values it has, give it no slices in LoadOptions::slices" : "");
    TORCH_CHECK_VALUE(
        tensor->shape == slice.shape, "[checkpoint] ", reader_.folder(), ": tensor '", slice.tensor,
        "' (", to_text(set), ") has the shape ", c10::IntArrayRef(tensor->shape),
        ", but the model's is ", c10::IntArrayRef(slice.shape));
    TORCH_CHECK_VALUE(
        tensor->dtype != c10::kFloat8_e4m3fn, "[checkpoint] ", reader_.folder(), ": tensor '",
        slice.tensor, "' is there in fp8 alone, without its main weights (main-*.safetensors)");
    taken_.insert(slice.tensor);
  }

  CheckpointReader reader_;
  std::set<std::string> taken_;
};

}  // namespace

namespace {

/// Returns a model that is ready to be given other weights.
ShardedModel model_to_load(ModuleRef model, const char* caller) {
  ShardedModel sharded(*model, caller);
  sharded.check_between_steps(caller);
  sharded.wait_until_idle(caller);
  return sharded;
}

}  // namespace

LoadedState load(
    ModuleRef model, AdamW* optimizer, const std::string& folder, const LoadOptions& options) {
  const auto sharded = model_to_load(model, "load");
  LoadedState state;
  on_all_ranks_for_long(sharded, [&] {
    const c10::NoGradGuard no_grad;
    const auto parameters =
        stored_parameters(*model, sharded, optimizer, options.slices, Purpose::load);
    using Check = CheckpointReader::Check;
    const bool first = sharded.world().rank() == 0;
    Loader loader(folder, first ? Check::all_sizes : Check::what_is_read);
    for (const auto& parameter : parameters) {
      loader.load(parameter, Set::main);
      for (const Set set : {Set::first_moment, Set::second_moment}) {
        if (parameter.pieces[set].defined()) loader.load(parameter, set);
      }
    }
    loader.check_all_taken(optimizer != nullptr);
    if (optimizer) optimizer->set_progress(loader.progress());
    state = loader.state();
  });
  sharded.publish_loaded();
  return state;
}

void load_elements(
    ModuleRef model, const SlicesOf& slices, const ReadElements& read, const CheckTensor& check) {
  const auto sharded = model_to_load(model, "load_elements");
  std::vector<StoredParameter> parameters;
  const auto each_run_here = [&](const std::function<void(const StoredParameter&, const Run&)>& f) {
    for (const auto& parameter : parameters) {
      const int64_t end = parameter.begin + parameter.pieces[Set::main].numel();
      each_run(parameter, parameter.begin, end, [&](const Run& run) { f(parameter, run); });
    }
  };
  on_all_ranks_for_long(sharded, [&] {
    parameters = stored_parameters(*model, sharded, nullptr, slices, Purpose::load_parameters);
    std::set<std::string> tensors;
    each_run_here([&](const StoredParameter&, const Run& run) {
      if (check && tensors.insert(*run.tensor).second) check(*run.tensor);
    });
  });
  on_all_ranks_for_long(sharded, [&] {
    const c10::NoGradGuard no_grad;
    each_run_here([&](const StoredParameter& parameter, const Run& run) {
      const auto& piece = parameter.pieces[Set::main];
      for (int64_t done = 0; done < run.length;) {
        const int64_t count = std::min(run.length - done, kAtOnce);
        const auto values = read(*run.tensor, run.in_tensor + done, count);
        piece.narrow(0, run.in_parameter + done - parameter.begin, count).copy_(values);
        done += count;
      }
    });
  });
  sharded.publish_loaded();
}

}  // namespace sherd
