// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "data/token_file.h"
#include "sherd/comm/world.h"

namespace sherd {

/// Throws on all ranks, naming the place, unless every token of the file is below `vocab`, and its
/// documents and mask are in order. Each
/// rank reads its part of the file once; what was found is kept in FILE.checked.json with the
/// file's size and time, so that no later run reads it again. Collective; blocks.
void check_tokens(const TokenFile& file, int64_t vocab, const World& world);

}  // namespace sherd
