// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// A part of a document that is tokenized on its own.
struct DocumentPart {
  std::string text;
  bool targets = true;  ///< the model is to learn to predict its tokens
};

/// Calls `each` with the segments of every line of a JSONL file, and a name of the line for
/// messages; empty lines are skipped. A line is an object with "text"; or "prompt" and
/// "completion", of which the second has the targets; or "segments", each with "text" and
/// "targets". Further keys are ignored. Throws, naming the line, for others.
void each_json_line(
    std::string_view text,
    const std::string& path,
    const std::function<void(const std::vector<DocumentPart>&, const std::string& name)>& each);

}  // namespace sherd
