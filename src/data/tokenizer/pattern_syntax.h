// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// A pattern of tokenizer.json, which Oniguruma reads in Ruby's syntax, as PCRE2 means the same
/// with UTF, UCP and MULTILINE on. What the two understand differently is written out or refused:
/// throws std::invalid_argument with the reason.
std::string pcre_from_oniguruma(const std::string& pattern);

}  // namespace sherd
