// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace sherd {

/// The Castagnoli checksum of some bytes, after that of those before them.
uint32_t crc32c(const void* data, size_t size, uint32_t before = 0);

}  // namespace sherd
