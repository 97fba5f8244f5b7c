// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace sherd {

/// The header of a token file with documents and masks. Behind it are the tokens, filled up to a
/// multiple of 8 bytes, then the positions where documents begin and then the mask's edges, 8 bytes
/// each; all numbers are little-endian. From the first edge to the second tokens are no targets,
/// from the third to the fourth neither, and so on; behind a last odd one none is. A file that does
/// not begin with the magic has tokens alone.
struct TokenFileHeader {
  static constexpr std::array<char, 8> kMagic{'S', 'H', 'E', 'R', 'D', 'T', 'O', 'K'};
  std::array<char, 8> magic = kMagic;
  uint32_t version = 1;
  uint32_t token_bytes = 2;
  uint64_t tokens = 0;
  uint64_t documents = 0;  ///< 0: not known
  uint64_t edges = 0;      ///< 0: all tokens are targets
  std::array<uint64_t, 3> unused{};

  /// Returns the bytes of the header and the tokens, filled up.
  uint64_t bytes_before_documents() const {
    return (sizeof(TokenFileHeader) + tokens * token_bytes + 7) / 8 * 8;
  }
};
static_assert(sizeof(TokenFileHeader) == 64);

}  // namespace sherd
