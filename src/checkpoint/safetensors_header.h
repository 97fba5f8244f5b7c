// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/safetensors.h"

namespace sherd {

struct SafetensorsHeader {
  std::map<std::string, SafetensorsFile::Tensor> tensors;
  std::map<std::string, std::string> metadata;
  size_t size = 0;  ///< bytes in the file, with the length in front
};

/// Reads the header of a file of these bytes. Throws, naming the file and what is wrong, unless
/// every tensor has a known dtype and lies, right after another, within the file.
SafetensorsHeader parse_safetensors(const std::string& path, std::span<const unsigned char> file);

/// The same for a header without the length in front of it, of a file of `file_bytes` bytes.
SafetensorsHeader parse_safetensors_header(
    const std::string& path, std::string_view text, size_t file_bytes);

/// Returns the length and the header, padded to a multiple of 8 bytes. Tensors follow one another
/// in the given order.
std::string safetensors_header(
    const std::vector<std::pair<std::string, SafetensorsFile::Tensor>>& tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace sherd
