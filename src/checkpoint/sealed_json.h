// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sherd {

using Json = nlohmann::ordered_json;

/// An object as text, with its own checksum as the last key.
std::string sealed_text(Json object);
/// Writes it, and sees to it that it is on the disk.
void write_sealed(const std::string& path, Json object);
/// Reads one; throws, naming the file, where it is not there, no JSON, or not what was written.
Json read_sealed(const std::string& path);

}  // namespace sherd
