// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <thread>

namespace sherd::app {

/// Standard error of ranks, which begin the lines of their errors with rank_text(). A line that
/// another rank has printed already is only counted.
class RankErrors {
 public:
  /// Opens a pipe. To be called before fork(), then use() in the child and follow() in the parent.
  RankErrors();
  ~RankErrors();
  RankErrors(const RankErrors&) = delete;
  RankErrors& operator=(const RankErrors&) = delete;

  /// Makes the pipe this process's standard error.
  void use() const;
  /// Begins to print what arrives to standard error, on a thread.
  void follow();
  /// Waits until all writers have closed the pipe, then says which lines several ranks have
  /// printed.
  void finish();

 private:
  void read_all();
  void print(const std::string& line);

  int reader_ = -1;
  int writer_ = -1;
  std::thread thread_;
  std::map<std::string, int> ranks_;  // that printed a line
  int repeated_ = 0;                  // the most ranks with a line
};

}  // namespace sherd::app
