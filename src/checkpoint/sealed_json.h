// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace sherd {

using Json = nlohmann::ordered_json;

/// Returns an object as text, with its own checksum as the last key.
std::string sealed_text(Json object);
/// Writes such a text to a file; it is on the disk on return.
void write_sealed(const std::string& path, Json object);
/// Reads such a file. Throws, naming it, if it is missing, not JSON, or not as it was written.
Json read_sealed(const std::string& path);

}  // namespace sherd
