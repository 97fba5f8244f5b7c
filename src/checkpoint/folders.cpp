// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/folders.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "checkpoint/file_system.h"
#include "checkpoint/reader.h"
#include "sherd/checkpoint/checkpoint.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "step-";
constexpr const char* kTrash = ".removed";

std::optional<int64_t> step_of(const std::string& name) {
  const auto digits = name.substr(std::min(name.size(), std::strlen(kPrefix)));
  const bool fine = name.starts_with(kPrefix) && !digits.empty() && digits.size() < 18 &&
                    digits.find_first_not_of("0123456789") == std::string::npos;
  const bool canonical = digits.size() == 1 || !digits.starts_with('0');
  return fine && canonical ? std::optional(std::stoll(digits)) : std::nullopt;
}

/// A folder that is, was or was to be a checkpoint.
struct StepFolder {
  int64_t step = 0;
  std::string path;
  bool trash = false;
};

std::vector<StepFolder> step_folders(const std::string& folder) {
  std::vector<StepFolder> result;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const auto name = entry->path().filename().string();
    const auto dot = std::min(name.find('.'), name.size());
    const auto suffix = name.substr(dot);
    const bool trash = suffix.starts_with(kTrash);
    if (!suffix.empty() && !trash && suffix != unfinished_name("") && suffix != replaced_name("")) {
      continue;
    }
    const auto step = step_of(name.substr(0, dot));
    std::error_code ignored;
    if (step && entry->is_directory(ignored)) {
      result.push_back({*step, entry->path().string(), trash});
    }
  }
  return result;
}

bool is_folder(const std::string& path) {
  struct stat about {};
  return lstat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
}

}  // namespace

std::string unfinished_name(const std::string& folder) {
  return folder + ".part";
}
std::string replaced_name(const std::string& folder) {
  return folder + ".old";
}

std::string locate_checkpoint(const std::string& folder) {
  std::error_code code;
  if (fs::exists(folder, code)) return folder;
  auto name = folder;
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  for (const auto& other : {unfinished_name(name), replaced_name(name)}) {
    if (fs::exists(other, code) && !why_incomplete(other)) return other;
  }
  return folder;
}

std::vector<std::pair<int64_t, std::string>> find_checkpoints(const std::string& folder) {
  std::map<int64_t, std::string> found;
  for (const auto& one : step_folders(folder)) {
    if (one.trash) continue;
    const auto name = (fs::path(folder) / (kPrefix + std::to_string(one.step))).string();
    const auto path = locate_checkpoint(name);
    if (!why_incomplete(path)) found[one.step] = path;
  }
  return {found.begin(), found.end()};
}

void keep_newest(const std::string& folder, int64_t keep, int64_t newest) {
  auto whole = find_checkpoints(folder);
  std::erase_if(whole, [&](const auto& one) { return one.first > newest; });
  if (std::ssize(whole) < keep || keep <= 0) return;
  const int64_t oldest = whole[whole.size() - static_cast<size_t>(keep)].first;
  std::string problem;
  for (const auto& one : step_folders(folder)) {
    if (one.trash && one.step <= newest) {
      remove_tree(one.path);  // was reported when it became trash; may work by now
    } else if (one.step < oldest) {
      try {
        remove_checkpoint(one.path);
      } catch (const c10::Error& error) {
        if (problem.empty()) problem = error.what_without_backtrace();
      }
    }
  }
  TORCH_CHECK(problem.empty(), problem);
}

std::string move_to_trash(const std::string& folder) {
  auto trash = folder + kTrash;
  struct stat about {};
  for (int i = 2; lstat(trash.c_str(), &about) == 0; ++i) {
    trash = folder + kTrash + "-" + std::to_string(i);
  }
  TORCH_CHECK(
      file_system().rename(folder.c_str(), trash.c_str()) == 0, "[checkpoint] ", folder,
      " can't be removed: renaming it to ", trash, " failed: ", std::strerror(errno),
      ": check the permissions of the folder around it");
  return trash;
}

// Not std::filesystem::remove_all: libtorch exports one of its own that does not work.
std::string remove_tree(const std::string& path) {
  std::string problem;
  if (is_folder(path)) {
    std::vector<std::string> inside;
    std::error_code code;
    for (fs::directory_iterator entry(path, code), end; !code && entry != end;
         entry.increment(code)) {
      inside.push_back(entry->path().string());
    }
    for (const auto& one : inside) {
      const auto inner = remove_tree(one);
      if (problem.empty()) problem = inner;
    }
  }
  if (file_system().remove(path.c_str()) == 0 || errno == ENOENT || !problem.empty()) {
    return problem;
  }
  return path + " can't be removed: " + std::strerror(errno);
}

void remove_checkpoint(const std::string& folder) {
  struct stat about {};
  if (lstat(folder.c_str(), &about) != 0 && errno == ENOENT) return;
  const auto problem = remove_tree(move_to_trash(folder));
  TORCH_CHECK(
      problem.empty(), "[checkpoint] ", problem,
      ": the rest of the checkpoint is gone; the next save tries again");
}

}  // namespace sherd
