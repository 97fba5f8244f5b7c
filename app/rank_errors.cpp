// SPDX-License-Identifier: Apache-2.0
#include "rank_errors.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sherd::app {
namespace {

/// Returns the text behind a prefix such as "rank 3: ", or nothing without that prefix.
std::string text_of_rank(const std::string& line) {
  const std::string begin = "rank ";
  if (line.compare(0, begin.size(), begin) != 0) return "";
  auto at = begin.size();
  while (at < line.size() && std::isdigit(static_cast<unsigned char>(line[at]))) ++at;
  if (at == begin.size() || line.compare(at, 2, ": ") != 0) return "";
  return line.substr(at + 2);
}

}  // namespace

RankErrors::RankErrors() {
  std::array<int, 2> ends{};
  TORCH_CHECK(
      pipe2(ends.data(), O_CLOEXEC) == 0, "[launch] can't make a pipe: ", std::strerror(errno));
  reader_ = ends[0];
  writer_ = ends[1];
}

RankErrors::~RankErrors() {
  finish();
}

void RankErrors::use() const {
  dup2(writer_, STDERR_FILENO);
}

void RankErrors::follow() {
  close(writer_);
  writer_ = -1;
  thread_ = std::thread([this] { read_all(); });
}

void RankErrors::finish() {
  if (thread_.joinable()) thread_.join();
  for (int* end : {&reader_, &writer_}) {
    if (*end >= 0) close(*end);
    *end = -1;
  }
  if (repeated_ > 1) {
    std::fprintf(stderr, "[launch] %d ranks have ended with the same error\n", repeated_);
  }
  repeated_ = 0;
}

void RankErrors::read_all() {
  std::array<char, 4096> part{};
  std::string rest;
  for (;;) {
    const auto size = read(reader_, part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    rest.append(part.data(), static_cast<size_t>(size));
    size_t begin = 0;
    for (size_t end = 0; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      print(rest.substr(begin, end + 1 - begin));
    }
    rest.erase(0, begin);
  }
  print(rest);
}

void RankErrors::print(const std::string& line) {
  const auto text = text_of_rank(line);
  if (!text.empty()) {
    const int ranks = ++ranks_[text];
    if (ranks > 1) {
      repeated_ = std::max(repeated_, ranks);
      return;
    }
  }
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace sherd::app
