// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/arrivals.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstdlib>
#include <fstream>

namespace sherd {

Arrivals::Arrivals(const Launch& launch) : launch_(launch) {
  const char* folder = std::getenv("PMIX_SERVER_TMPDIR");
  if (folder == nullptr || !std::filesystem::is_directory(folder)) return;
  folder_ = folder;
  std::ofstream(file_of(launch.rank)) << launch.size << '\n';
}

std::filesystem::path Arrivals::file_of(int64_t rank) const {
  const char* job = std::getenv("PMIX_NAMESPACE");
  return folder_ / c10::str("sherd-arrived-", job == nullptr ? "" : job, "-", rank);
}

std::string Arrivals::missing_text() const {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < launch_.size; ++rank) {
    if (!folder_.empty() && !std::filesystem::exists(file_of(rank))) missing.push_back(rank);
  }
  if (missing.empty() ||
      (launch_.local_size < launch_.size && std::ssize(missing) == launch_.size)) {
    return "not all ranks have arrived";
  }
  // Ranks of other machines make their files there, so not all ranks without one here are missing.
  const bool all_here = launch_.local_size == launch_.size;
  return c10::str(
      "rank", missing.size() == 1 ? " " : "s ", c10::Join(", ", missing),
      missing.size() == 1 ? " has" : " have", " not arrived",
      all_here ? "" : " on this machine; ranks of other machines may have");
}

}  // namespace sherd
