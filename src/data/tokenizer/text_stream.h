// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace sherd {

/// Makes text of bytes that come in parts, such as those of generated tokens, of which several may
/// be one character. Bytes that are no UTF-8 become U+FFFD, one for each longest part that begins a
/// character, as in Hugging Face's library.
class TextStream {
 public:
  /// Returns the text of all whole characters so far that were not returned before.
  std::string add(std::string_view bytes);
  /// Returns the text of what is left: a character that has not been completed.
  std::string finish();

 private:
  std::string text_of_pending(bool all);

  std::string pending_;
};

}  // namespace sherd
