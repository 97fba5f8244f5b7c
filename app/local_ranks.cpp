// SPDX-License-Identifier: Apache-2.0
#include "local_ranks.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace sherd::app {
namespace {

/// The first of some variables that is set.
const char* variable(std::initializer_list<const char*> names) {
  for (const auto* name : names) {
    if (const auto* value = std::getenv(name)) return value;
  }
  return nullptr;
}

}  // namespace

bool has_launcher() {
  return variable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"}) != nullptr;
}

bool is_first_rank() {
  const auto* rank = variable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"});
  return !rank || std::string(rank) == "0";
}

int64_t local_ranks() {
  const auto* count =
      variable({"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"});
  return count ? std::max(1L, std::strtol(count, nullptr, 10)) : 1;
}

void start_local_ranks(int64_t ranks, char** arguments) {
  const std::string mpirun = SHERD_MPIRUN;
  TORCH_CHECK(
      !mpirun.empty(), "[launch] this build has no MPI, so it can't start ", ranks,
      " ranks by itself: start it with torchrun, or build with MPI");
  if (geteuid() == 0) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  // To start ranks of this machine alone Open MPI needs no ssh, but it asks for one unless told so.
  if (std::system("command -v ssh > /dev/null") != 0) setenv("OMPI_MCA_plm", "isolated", 0);
  const auto count = std::to_string(ranks);
  std::vector<const char*> command{mpirun.c_str(), "-n",   count.c_str(),   "--oversubscribe",
                                   "--bind-to",    "none", "/proc/self/exe"};
  std::vector<char> self(4096);
  const auto length = readlink("/proc/self/exe", self.data(), self.size() - 1);
  if (length > 0) command.back() = self.data();
  for (char** argument = arguments + 1; *argument; ++argument) command.push_back(*argument);
  command.push_back(nullptr);
  execv(mpirun.c_str(), const_cast<char* const*>(command.data()));
  TORCH_CHECK(
      false, "[launch] ", mpirun, " can't be started: ", std::strerror(errno),
      "; start the ranks yourself: mpirun -n ", ranks, " sherd train …");
}

}  // namespace sherd::app
