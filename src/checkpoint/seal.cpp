// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/checksum_index.h"
#include "checkpoint/file_plan.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shared_file.h"
#include "checkpoint/writer.h"
#include "files/crc32c.h"
#include "sherd/checkpoint/inspect.h"

namespace sherd {

void seal_checkpoint(
    const std::string& folder,
    const std::map<std::string, int64_t>& numbers,
    const std::optional<AdamW::Progress>& progress) {
  namespace fs = std::filesystem;
  const auto in = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  Json sizes = Json::object(), map = Json::object(), texts = Json::object();
  std::vector<PlannedFile> files;
  BlocksOfFiles sums;
  int64_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto name = entry.path().filename().string();
    const bool known = std::any_of(kSets.begin(), kSets.end(), [&](Set set) {
      return name.starts_with(std::string(to_text(set)) + "-");
    });
    TORCH_CHECK_VALUE(
        known, "[checkpoint] ", folder, " has a file '", name,
        "', which is none of a checkpoint's (model-*, main-*, first_moment-*, second_moment-*): "
        "rename or remove it");
    const MappedFile file(entry.path().string());
    const auto header = parse_safetensors(file.path(), {file.data(), file.size()});
    std::vector<BlockRecord> blocks;
    for (size_t begin = 0; begin < file.size();) {
      const size_t end = begin == 0
                             ? header.size
                             : std::min(file.size(), begin + static_cast<size_t>(kBlockBytes));
      blocks.push_back(make_record(
          static_cast<int64_t>(begin), static_cast<int64_t>(end),
          crc32c(file.data() + begin, end - begin)));
      begin = end;
    }
    sums.push_back(std::move(blocks));
    const auto* text = reinterpret_cast<const char*>(file.data());
    files.push_back({name, {text, header.size}, static_cast<int64_t>(file.size())});
    sizes[name] = file.size();
    if (!name.starts_with("model-")) continue;
    for (const auto& [tensor, about] : header.tensors) {
      map[tensor] = name;
      total += about.bytes;
    }
  }
  TORCH_CHECK_VALUE(!map.empty(), "[checkpoint] ", folder, " has no file model-*.safetensors");
  write_text(
      in("model.safetensors.index.json"),
      Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(1) + "\n");
  for (const char* name : {"model.safetensors.index.json", "config.json"}) {
    if (!fs::exists(in(name))) continue;
    const MappedFile file(in(name));
    texts[name] = crc32c(file.data(), file.size());
  }
  sync_all(make_index(folder, files, sums));
  write_sealed(in("state.json"), state_of(numbers, 1, sizes, texts, progress));
  sync_folder(folder);
}

}  // namespace sherd
