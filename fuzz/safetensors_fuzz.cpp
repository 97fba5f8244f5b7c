// SPDX-License-Identifier: Apache-2.0
// Any bytes are a safetensors file, or edits of a good one. It is refused in words, or every tensor
// that it names can be read.
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "checkpoint/safetensors.h"
#include "memory_file.h"

namespace {

constexpr std::array<const char*, 24> kPieces{
    "{",
    "}",
    "\"a\":",
    "\"b\":",
    "\"dtype\":",
    "\"F32\"",
    "\"BF16\"",
    "\"I64\"",
    "\"X\"",
    "\"shape\":",
    "\"data_offsets\":",
    "[0,8]",
    "[8,12]",
    "[8,0]",
    "[2]",
    "[]",
    "[-1]",
    "[4611686018427387905,4]",
    "[1e3]",
    "[[2]]",
    ",",
    "null",
    "\"__metadata__\":",
    "\"\\u0000\""};

/// A header of two tensors with their data, or pieces in any order, and some bytes changed.
std::string file_from(const uint8_t* data, size_t size) {
  auto byte = [&, at = size_t{0}]() mutable { return at < size ? data[at++] : uint8_t{0}; };
  const int kind = byte() % 3;
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}})";
  if (kind == 0) {
    header.clear();
    for (int count = byte() % 32; count > 0; --count) header += kPieces[byte() % kPieces.size()];
  }
  uint64_t length = header.size();
  if (kind == 2) length += byte() - uint64_t{128};
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += header + std::string(12, 'x');
  for (int edits = byte() % 6; edits > 0; --edits) {
    file[static_cast<size_t>(byte() << 8 | byte()) % file.size()] = static_cast<char>(byte());
  }
  file.resize(file.size() - std::min<size_t>(byte() % 16 == 0 ? byte() : 0, file.size()));
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = size % 8 == 0 ? std::string(reinterpret_cast<const char*>(data), size)
                                   : file_from(data, size);
  const sherd::fuzz::MemoryFile file(bytes);
  try {
    const sherd::SafetensorsFile tensors(file.path());
    for (const auto& [name, about] : tensors.tensors()) {
      if (static_cast<int64_t>(tensors.read(name).nbytes()) != about.bytes) {
        std::fprintf(stderr, "'%s' has other bytes than its header says\n", name.c_str());
        std::abort();
      }
    }
  } catch (const c10::ValueError&) {
    // Refused in words: as good an answer.
  }
  return 0;
}
