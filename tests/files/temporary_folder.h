// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ftw.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace sherd::testing {

/// A folder of its own, gone with all that is in it. (std::filesystem::remove_all jumps to nowhere
/// where libtorch is linked: libtorch exports one of its own, and what that calls is not there.)
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = std::filesystem::temp_directory_path() / "sherd-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    const auto remove = [](const char* path, const struct stat*, int, FTW*) {
      return std::remove(path);
    };
    nftw(path_.c_str(), remove, 16, FTW_DEPTH | FTW_PHYS);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace sherd::testing
