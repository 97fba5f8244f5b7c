// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <filesystem>

#include "checkpoint/crc32c.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shared_file.h"
#include "checkpoint/writer.h"
#include "sherd/checkpoint/inspect.h"
#include "sherd/checkpoint/mapped_file.h"

namespace sherd {

void seal_checkpoint(
    const std::string& folder,
    const std::map<std::string, int64_t>& numbers,
    const std::optional<AdamW::Progress>& progress) {
  namespace fs = std::filesystem;
  const auto in = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  Json sums = Json::object(), sizes = Json::object(), map = Json::object(), texts = Json::object();
  int64_t total = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto name = entry.path().filename().string();
    const MappedFile file(entry.path().string());
    const auto header = parse_safetensors(file.path(), {file.data(), file.size()});
    Json blocks = Json::array();
    for (size_t begin = 0; begin < file.size();) {
      const size_t end = begin == 0
                             ? header.size
                             : std::min(file.size(), begin + static_cast<size_t>(kBlockBytes));
      blocks.push_back({begin, end, crc32c(file.data() + begin, end - begin)});
      begin = end;
    }
    sums[name] = std::move(blocks);
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
  write_sealed(in(checksums_name(0)), {{"files", std::move(sums)}});
  write_sealed(in("state.json"), state_of(numbers, 1, sizes, texts, progress));
  sync_folder(folder);
}

}  // namespace sherd
