// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "files/byte_text.h"

// Numbers of bytes as people write them.
namespace sherd {

/// "64GiB", "512 MiB", "80GB", "1.5 TiB", "4096"; nothing where it is none of these, or does not
/// fit. A fraction of a byte is dropped.
std::optional<int64_t> parse_bytes(const std::string& text);
/// The same; throws with the remedy.
int64_t bytes_from(const std::string& text);

/// Exactly that many, in the largest binary unit that needs no fraction: "141GiB", "1536MiB".
std::string exact_byte_text(int64_t bytes);

}  // namespace sherd
