// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/sealed_json.h"

#include <c10/util/Exception.h>

#include "checkpoint/file_system.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/shared_file.h"
#include "files/crc32c.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

constexpr size_t kLargestJson = size_t{1} << 30;

uint32_t seal_of(const Json& object) {
  const auto text = object.dump();
  return crc32c(text.data(), text.size());
}

}  // namespace

std::string sealed_text(Json object) {
  object["crc32c"] = seal_of(object);
  return object.dump(1) + "\n";
}

void write_sealed(const std::string& path, Json object) {
  write_text(path, sealed_text(std::move(object)));
}

Json read_sealed(const std::string& path) {
  const MappedFile file(path);
  TORCH_CHECK_VALUE(
      file.size() <= kLargestJson, "[checkpoint] ", path, " has ", file.size(),
      " bytes, too many for such a file");
  const auto* text = reinterpret_cast<const char*>(file.data());
  file_counts().bytes_read += static_cast<int64_t>(file.size());
  auto parsed = parse_json<Json>({text, file.size()}, {.levels = 16});
  auto& object = parsed.value;
  const bool fine =
      parsed.is_object() && object.contains("crc32c") && object["crc32c"].is_number_unsigned();
  TORCH_CHECK_VALUE(
      fine, "[checkpoint] ", path, " is damaged: it is not a JSON object with a checksum");
  const auto seal = object["crc32c"].get<uint64_t>();
  object.erase("crc32c");
  TORCH_CHECK_VALUE(
      seal == seal_of(object), "[checkpoint] ", path,
      " is damaged: its contents do not match its checksum");
  return std::move(object);
}

}  // namespace sherd
