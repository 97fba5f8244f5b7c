// SPDX-License-Identifier: Apache-2.0
#include "local_ranks.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sherd/train/train.h"

namespace sherd::app {
namespace {

/// The first of some variables that is set.
const char* variable(std::initializer_list<const char*> names) {
  for (const auto* name : names) {
    if (const auto* value = std::getenv(name)) return value;
  }
  return nullptr;
}

volatile pid_t child = -1;
StopRequests requests;

/// Open MPI hands SIGUSR1 to the ranks; with SIGTERM it ends them.
void forward(int) {
  const auto kind = requests.note(rising_seconds());
  if (child <= 0 || kind == StopRequests::Kind::repeat) return;
  kill(child, kind == StopRequests::Kind::first ? SIGUSR1 : SIGTERM);
}

}  // namespace

bool has_launcher() {
  if (variable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK"})) return true;
  // Slurm says so to a batch script, too, which is one task.
  return variable({"SLURM_PROCID"}) && launched_ranks() > 1;
}

int64_t launched_ranks() {
  const auto* count = variable({"OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_NTASKS"});
  return count ? std::max(1L, std::strtol(count, nullptr, 10)) : 1;
}

bool is_first_rank() {
  const auto* rank = variable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"});
  return !rank || std::string(rank) == "0";
}

std::string rank_text() {
  const auto* rank = variable({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"});
  return rank ? std::string("rank ") + rank + ": " : "";
}

int64_t local_ranks() {
  const auto* count = variable(
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE",
       "SLURM_TASKS_PER_NODE"});
  return count ? std::max(1L, std::strtol(count, nullptr, 10)) : 1;
}

int start_local_ranks(int64_t ranks, char** arguments) {
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
  // Nor does it need fabrics between machines, for which it looks for a second.
  setenv("OMPI_MCA_btl", "^ofi", 0);
  // The ranks write to a pipe of mpirun's; who started them may have a terminal.
  setenv("SHERD_TERMINAL", std::to_string(terminal_columns()).c_str(), 0);
  std::vector<char> self(4096);
  TORCH_CHECK(
      readlink("/proc/self/exe", self.data(), self.size() - 1) > 0,
      "[launch] /proc/self/exe can't be read: ", std::strerror(errno));
  const auto count = std::to_string(ranks);
  std::vector<const char*> command{mpirun.c_str(), "-n",   count.c_str(), "--oversubscribe",
                                   "--bind-to",    "none", self.data()};
  for (char** argument = arguments + 1; *argument; ++argument) command.push_back(*argument);
  command.push_back(nullptr);

  struct sigaction action {};
  action.sa_handler = forward;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  child = fork();
  TORCH_CHECK(child >= 0, "[launch] no further process: ", std::strerror(errno));
  if (child == 0) {
    // A terminal's Ctrl-C reaches us alone: mpirun would end the ranks at once. Then it must not
    // read from the terminal either, and it ends with us.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    execv(mpirun.c_str(), const_cast<char* const*>(command.data()));
    std::fprintf(
        stderr, "[launch] %s can't be started: %s\n", mpirun.c_str(), std::strerror(errno));
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace sherd::app
