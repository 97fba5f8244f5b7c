// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace sherd::app {

/// JSONL files with the conversations of others rendered by a chat template, in a temporary folder
/// that ends with this object.
class RenderedChats {
 public:
  /// `place` is a template, or a folder that has one. Runs a Python with jinja2, which writes what
  /// is wrong with a conversation to standard error; then throws.
  RenderedChats(const std::vector<std::string>& texts, const std::string& place);
  ~RenderedChats();
  RenderedChats(const RenderedChats&) = delete;
  RenderedChats& operator=(const RenderedChats&) = delete;

  /// Returns the given paths with the rendered files in the place of those that have "messages".
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  void remove();

  std::string folder_;
  std::vector<std::string> texts_;
};

}  // namespace sherd::app
