// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/text_stream.h"

#include "data/tokenizer/utf8.h"

namespace sherd {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::string TextStream::add(std::string_view bytes) {
  pending_ += bytes;
  return text_of_pending(/*all=*/false);
}

std::string TextStream::finish() {
  return text_of_pending(/*all=*/true);
}

std::string TextStream::text_of_pending(bool all) {
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const auto part = longest_part(pending_, at);
    const bool open = !part.whole && part.bytes > 0 && at + part.bytes == pending_.size();
    if (open && !all) break;  // the next bytes may complete it
    const size_t bytes = part.bytes == 0 ? 1 : part.bytes;
    text += part.whole ? pending_.substr(at, bytes) : kReplacement;
    at += bytes;
  }
  pending_.erase(0, at);
  return text;
}

}  // namespace sherd
