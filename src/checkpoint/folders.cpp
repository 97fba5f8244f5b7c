// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "sherd/checkpoint/checkpoint.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";

std::optional<int64_t> step_of(const std::string& name) {
  const auto digits = name.substr(std::min(name.size(), std::strlen(kPrefix)));
  const bool fine = name.starts_with(kPrefix) && !digits.empty() && digits.size() < 18 &&
                    digits.find_first_not_of("0123456789") == std::string::npos;
  const bool canonical = digits.size() == 1 || !digits.starts_with('0');
  return fine && canonical ? std::optional(std::stoll(digits)) : std::nullopt;
}

}  // namespace

std::vector<std::pair<int64_t, std::string>> find_checkpoints(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> result;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const auto step = step_of(entry->path().filename().string());
    if (step && !why_not_whole(entry->path().string())) {
      result.emplace_back(*step, entry->path().string());
    }
  }
  std::sort(result.begin(), result.end());
  return result;
}

void keep_newest(const std::string& folder, int64_t keep, int64_t newest) {
  auto whole = find_checkpoints(folder);
  std::erase_if(whole, [&](const auto& one) { return one.first > newest; });
  if (std::ssize(whole) < keep || keep <= 0) return;
  const int64_t oldest = whole[whole.size() - static_cast<size_t>(keep)].first;
  std::vector<std::string> old;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const auto& path = entry->path();
    const auto step =
        step_of(path.extension() == ".part" ? path.stem().string() : path.filename().string());
    if (step && *step < oldest && entry->is_directory(code)) old.push_back(path.string());
  }
  for (const auto& path : old) remove_checkpoint(path);
}

// Not std::filesystem::remove_all: libtorch exports one of its own that does not work.
void remove_checkpoint(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    files.push_back(entry->path().string());
  }
  // What says that it is whole goes first: half removed, it is none.
  std::stable_partition(files.begin(), files.end(), [](const std::string& file) {
    return file.ends_with("/state.json");
  });
  files.push_back(folder);
  for (const auto& file : files) {
    TORCH_CHECK(
        std::remove(file.c_str()) == 0 || errno == ENOENT, "[checkpoint] ", file,
        " can't be removed: ", std::strerror(errno));
  }
}

}  // namespace sherd
