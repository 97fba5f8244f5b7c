// SPDX-License-Identifier: Apache-2.0
#include "rendered_chats.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "child_process.h"
#include "files/parse_json.h"
#include "tools.h"

namespace sherd::app {
namespace {

/// Whether the first line of a .jsonl file has a conversation.
bool has_messages(const std::string& path) {
  if (!path.ends_with(".jsonl")) return false;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line) && line.find_first_not_of(" \t\r") == std::string::npos) {
  }
  const auto json = parse_json<nlohmann::json>(line);
  return json.is_object() && json.value.contains("messages");
}

}  // namespace

RenderedChats::RenderedChats(const std::vector<std::string>& texts, const std::string& place)
    : texts_(texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!has_messages(texts[i])) continue;
    if (folder_.empty()) {
      auto name = (std::filesystem::temp_directory_path() / "sherd-chats-XXXXXX").string();
      TORCH_CHECK(mkdtemp(name.data()), "[tokenize] ", name, " can't be made: check TMPDIR");
      folder_ = name;
    }
    texts_[i] = folder_ + "/" + std::to_string(i) + ".jsonl";
    const int code = run_program({python(), chat_script(), place, texts[i], texts_[i]});
    if (code == 0) continue;
    remove();
    TORCH_CHECK_VALUE(
        false, "[tokenize] ", texts[i], ": its conversations could not be rendered; see above");
  }
}

RenderedChats::~RenderedChats() {
  remove();
}

void RenderedChats::remove() {
  if (folder_.empty()) return;
  for (const auto& path : texts_) {
    if (path.starts_with(folder_ + "/")) unlink(path.c_str());
  }
  rmdir(folder_.c_str());
}

}  // namespace sherd::app
