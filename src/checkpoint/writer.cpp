// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/writer.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "checkpoint/crc32c.h"
#include "checkpoint/shared_file.h"
#include "checkpoint/slices.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// Files of the plan, open when they are first written to, and the checksums of what was.
class PartWriter {
 public:
  PartWriter(const UnfinishedFolder& folder, const FilePlan& plan)
      : folder_(folder), plan_(plan), files_(plan.files().size()), blocks_(plan.files().size()) {}

  void write(size_t file, const void* data, int64_t size, int64_t at) {
    auto& open = files_[file];
    if (!open) open.emplace((fs::path(folder_.path()) / plan_.files()[file].name).string());
    open->write(data, size, at);
    blocks_[file].push_back({at, at + size, crc32c(data, static_cast<size_t>(size))});
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
    Json files = Json::object();
    for (size_t i = 0; i < files_.size(); ++i) {
      if (!files_[i]) continue;
      files_[i]->sync();
      Json list = Json::array();
      for (const auto& [begin, end, crc] : blocks_[i]) list.push_back({begin, end, crc});
      files[plan_.files()[i].name] = std::move(list);
    }
    write_sealed(
        (fs::path(folder_.path()) / checksums_name(rank)).string(), {{"files", std::move(files)}});
  }

 private:
  struct Block {
    int64_t begin;
    int64_t end;
    uint32_t crc;
  };
  const UnfinishedFolder& folder_;
  const FilePlan& plan_;
  std::vector<std::optional<SharedFile>> files_;
  std::vector<std::vector<Block>> blocks_;
};

}  // namespace

void UnfinishedFolder::make() const {
  std::error_code code;
  const auto parent = fs::absolute(folder).lexically_normal().parent_path();
  fs::create_directories(parent, code);
  if (fs::exists(path())) remove_checkpoint(path());
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
    TORCH_CHECK(
        rename(path().c_str(), folder.c_str()) == 0, "[checkpoint] ", path(),
        " can't be renamed to ", folder, ": ", std::strerror(errno));
    sync_folder(parent);
    return;
  }
  // Both names change hands at once: at no instant is there none.
  const auto swapped =
      syscall(SYS_renameat2, AT_FDCWD, path().c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE);
  TORCH_CHECK(
      swapped == 0, "[checkpoint] ", path(), " can't take the place of ", folder, ": ",
      std::strerror(errno));
  sync_folder(parent);
  discard();  // the one that was there
}

Json state_of(
    const std::map<std::string, int64_t>& numbers,
    int64_t ranks,
    const Json& files,
    const Json& texts,
    const std::optional<AdamW::Progress>& progress) {
  Json state{{"format", "sherd"}, {"version", 1}};
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
        {"loss_scale", progress->loss_scale},
        {"healthy", progress->healthy}};
    if (!progress->missed.empty()) state["optimizer"]["missed"] = progress->missed;
  }
  return state;
}

std::string checksums_name(int64_t rank) {
  return "checksums-" + std::to_string(rank) + ".json";
}

void write_part(
    const UnfinishedFolder& folder,
    const std::vector<StoredParameter>& parameters,
    const FilePlan& plan,
    int64_t rank) {
  const c10::NoGradGuard no_grad;
  PartWriter writer(folder, plan);
  if (rank == 0) {
    for (size_t i = 0; i < plan.files().size(); ++i) {
      const auto& header = plan.files()[i].header;
      writer.write(i, header.data(), std::ssize(header), 0);
    }
  }
  for (const Set set : kSets) {
    const auto& tensors = plan.tensors(set);
    for (const auto& parameter : parameters) {
      const auto& piece = parameter.pieces[set == Set::model ? Set::main : set];
      if (!piece.defined() || parameter.write_begin == parameter.write_end) continue;
      each_run(parameter.slices, parameter.write_begin, parameter.write_end, [&](const Run& run) {
        const auto found = tensors.find(*run.tensor);
        if (found == tensors.end()) return;  // main weights of the model's dtype
        writer.write(found->second, run, piece, run.in_parameter - parameter.begin);
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
  Json sums = Json::object();
  for (const auto& [name, text] : texts) {
    write_text(in(name), text);
    sums[name] = crc32c(text.data(), text.size());
  }
  Json files = Json::object();
  for (const auto& file : plan.files()) files[file.name] = file.bytes;
  write_sealed(in("state.json"), state_of(options.numbers, ranks, files, sums, progress));
}

}  // namespace sherd
