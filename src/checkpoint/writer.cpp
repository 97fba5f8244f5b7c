// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/writer.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "checkpoint/checksum_index.h"
#include "checkpoint/file_system.h"
#include "checkpoint/shared_file.h"
#include "checkpoint/slices.h"
#include "files/crc32c.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// Files of the plan, open when they are first written to, and the checksums of what was.
class PartWriter {
 public:
  PartWriter(const UnfinishedFolder& folder, const FilePlan& plan)
      : folder_(folder), plan_(plan), places_(plan.files().size()), blocks_(plan.files().size()) {}

  void write(size_t file, const void* data, int64_t size, int64_t at) {
    auto& place = places_[file];
    if (!place) {
      place = files_.size();
      files_.emplace_back((fs::path(folder_.path()) / plan_.files()[file].name).string());
    }
    files_[*place].write(data, size, at);
    blocks_[file].push_back(make_record(at, at + size, crc32c(data, static_cast<size_t>(size))));
  }

  /// The same in fp8.
  void write_fp8(
      const PlannedTensor& tensor,
      const Run& run,
      const at::Tensor& piece,
      int64_t skipped,
      const Fp8Export& fp8) {
    for (int64_t done = 0; done < run.length;) {
      const int64_t count = std::min(run.length - done, kBlockBytes);
      const auto part = piece.narrow(0, skipped + done, count).to(at::kCPU, at::kFloat);
      const auto bytes = fp8.encode(*run.tensor, run.in_tensor + done, part);
      write(tensor.file, bytes.data(), count, tensor.offset + run.in_tensor + done);
      done += count;
    }
  }

  /// This rank's elements [begin, end) of a parameter, which are those of `piece` from `skipped`
  /// on.
  void write(
      const PlannedTensor& tensor, const Run& run, const at::Tensor& piece, int64_t skipped) {
    const auto size = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    const bool as_it_is = piece.is_cpu() && piece.scalar_type() == tensor.dtype;
    for (int64_t done = 0; done < run.length;) {
      const int64_t count = std::min(run.length - done, kBlockBytes / size);
      auto part = piece.narrow(0, skipped + done, count);
      if (!as_it_is) part = part.to(at::kCPU, tensor.dtype);
      const int64_t at = tensor.offset + (run.in_tensor + done) * size;
      write(tensor.file, part.const_data_ptr(), count * size, at);
      done += count;
    }
  }

  void finish(int64_t rank) {
    sync_all(files_);
    write_blocks(folder_.path(), rank, blocks_);
  }

 private:
  const UnfinishedFolder& folder_;
  const FilePlan& plan_;
  std::vector<SharedFile> files_;
  std::vector<std::optional<size_t>> places_;  // in files_, by number in the plan
  BlocksOfFiles blocks_;
};

void rename_folder(const std::string& from, const std::string& to) {
  TORCH_CHECK(
      file_system().rename(from.c_str(), to.c_str()) == 0, "[checkpoint] ", from,
      " can't be renamed to ", to, ": ", std::strerror(errno), ": check the folder around it");
}

}  // namespace

void UnfinishedFolder::make() const {
  std::error_code code;
  const auto parent = fs::absolute(folder).lexically_normal().parent_path();
  fs::create_directories(parent, code);
  // Complete, but its process ended before it had its name.
  if (const auto found = locate_checkpoint(folder); found != folder) rename_folder(found, folder);
  for (const auto& left : {path(), replaced_name(folder)}) {
    if (fs::exists(left, code)) remove_tree(move_to_trash(left));
  }
  TORCH_CHECK(
      mkdir(path().c_str(), 0755) == 0, "[checkpoint] ", path(),
      " can't be made: ", std::strerror(errno), ": check the folder");
}

void UnfinishedFolder::discard() const noexcept {
  try {
    remove_checkpoint(path());
  } catch (const std::exception&) {  // the next save of this name tries again
  }
}

void UnfinishedFolder::finish() const {
  sync_folder(path());
  const auto parent = fs::absolute(folder).lexically_normal().parent_path().string();
  if (!fs::exists(folder)) {
    rename_folder(path(), folder);
    sync_folder(parent);
    return;
  }
  // Both names change hands at once: at no instant is there none.
  if (file_system().exchange(path().c_str(), folder.c_str()) == 0) {
    sync_folder(parent);
    discard();  // the one that was there
    return;
  }
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
  TORCH_CHECK(
      unknown, "[checkpoint] ", path(), " can't take the place of ", folder, ": ",
      std::strerror(errno), ": check the folder around it");
  replace(parent);
}

/// In two renames, for file systems that can't exchange names. In between, locate_checkpoint finds
/// the new one under the name that it was written under.
void UnfinishedFolder::replace(const std::string& parent) const {
  const auto before = replaced_name(folder);
  rename_folder(folder, before);
  try {
    rename_folder(path(), folder);
  } catch (const c10::Error&) {
    rename_folder(before, folder);
    throw;
  }
  sync_folder(parent);
  try {
    remove_checkpoint(before);
  } catch (const c10::Error&) {  // the new one has its place; later saves and pruning try again
  }
}

Json state_of(
    const std::map<std::string, int64_t>& numbers,
    int64_t ranks,
    const Json& files,
    const Json& texts,
    const std::optional<AdamW::Progress>& progress) {
  Json state{{"format", "sherd"}, {"version", kVersion}};
  for (const auto& [name, number] : numbers) {
    for (const char* taken :
         {"format", "version", "ranks", "files", "texts", "optimizer", "crc32c"}) {
      TORCH_CHECK_VALUE(
          name != taken, "[checkpoint] a number can't be called '", name, "': state.json has that");
    }
    state[name] = number;
  }
  state["ranks"] = ranks;
  state["files"] = files;
  state["texts"] = texts;
  if (progress) {
    state["optimizer"] = {
        {"name", "adamw"},
        {"updates", progress->updates},
        {"scaled", progress->loss_scale > 0},
        {"loss_scale", progress->loss_scale},
        {"healthy", progress->healthy}};
    if (!progress->missed.empty()) state["optimizer"]["missed"] = progress->missed;
  }
  return state;
}

void write_part(
    const UnfinishedFolder& folder,
    const std::vector<StoredParameter>& parameters,
    const FilePlan& plan,
    const Fp8Export& fp8,
    int64_t rank) {
  const c10::NoGradGuard no_grad;
  PartWriter writer(folder, plan);
  if (rank == 0) {
    for (size_t i = 0; i < plan.files().size(); ++i) {
      const auto& header = plan.files()[i].header;
      writer.write(i, header.data(), std::ssize(header), 0);
    }
    for (const auto& name : fp8.tensors()) {
      const auto& tensor = plan.tensors(Set::model).at(Fp8Export::scales_of(name));
      const auto scales = fp8.scales(name);
      writer.write(
          tensor.file, scales.const_data_ptr(), static_cast<int64_t>(scales.nbytes()),
          tensor.offset);
    }
  }
  for (const Set set : kSets) {
    const auto& tensors = plan.tensors(set);
    for (const auto& parameter : parameters) {
      const auto& piece = parameter.pieces[set == Set::model ? Set::main : set];
      if (!piece.defined() || parameter.write_begin == parameter.write_end) continue;
      each_run(parameter, parameter.write_begin, parameter.write_end, [&](const Run& run) {
        const auto found = tensors.find(*run.tensor);
        if (found == tensors.end()) return;  // main weights of the model's dtype
        const int64_t skipped = run.in_parameter - parameter.begin;
        if (set == Set::model && fp8.has(*run.tensor)) {
          return writer.write_fp8(found->second, run, piece, skipped, fp8);
        }
        writer.write(found->second, run, piece, skipped);
      });
    }
  }
  writer.finish(rank);
}

void write_state(
    const UnfinishedFolder& folder,
    const FilePlan& plan,
    int64_t ranks,
    const std::optional<AdamW::Progress>& progress,
    const SaveOptions& options) {
  const auto in = [&](const std::string& name) {
    return (fs::path(folder.path()) / name).string();
  };
  auto texts = options.texts;
  texts["model.safetensors.index.json"] = plan.index();
  auto small =
      make_index(folder.path(), plan.files(), join_blocks(folder.path(), ranks, plan.files()));
  Json sums = Json::object();
  for (const auto& [name, text] : texts) {
    small.push_back(make_text(in(name), text));
    sums[name] = crc32c(text.data(), text.size());
  }
  sync_all(small);
  Json files = Json::object();
  for (const auto& file : plan.files()) files[file.name] = file.bytes;
  write_sealed(in("state.json"), state_of(options.numbers, ranks, files, sums, progress));
}

}  // namespace sherd
