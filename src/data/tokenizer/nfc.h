// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace sherd {

/// Where valid UTF-8 may stop being in Unicode's normal form C: the first character that NFC would
/// replace or move, or may join with one before it. Nothing: NFC leaves the text as it is. One that
/// may be joined is named without a look at what is before it.
std::optional<size_t> first_not_nfc(std::string_view text);

}  // namespace sherd
