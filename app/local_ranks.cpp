// SPDX-License-Identifier: Apache-2.0
#include "local_ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "rank_errors.h"
#include "tools.h"
#include "train/train.h"

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
volatile sig_atomic_t stopped = 0;  // by a signal to this process
StopRequests requests;

/// Open MPI hands SIGUSR1 to the ranks; with SIGTERM it ends them.
void forward(int) {
  stopped = 1;
  const auto kind = requests.note(rising_seconds());
  if (child <= 0 || kind == StopRequests::Kind::repeat) return;
  kill(child, kind == StopRequests::Kind::first ? SIGUSR1 : SIGTERM);
}

/// Returns a warning if ranks would wait for each other's cores; else nothing.
std::string warning_of_cores(int64_t ranks) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  if (cores == 0 || ranks <= cores) return "";
  return c10::str(
      "[launch] ", ranks, " ranks on a machine with ", cores, cores == 1 ? " core" : " cores",
      ": they take turns, and a step takes longer than on ", cores,
      cores == 1 ? " rank" : " ranks");
}

/// 32 random bytes in hexadecimal digits, from the system.
std::string random_digits() {
  std::array<unsigned char, 32> bytes{};
  TORCH_CHECK(
      getentropy(bytes.data(), bytes.size()) == 0,
      "[launch] the system gives no random bytes: ", std::strerror(errno));
  std::string digits;
  for (const auto byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

/// Open MPI hands SIGUSR2 to the ranks, too, which leave a mark in their flight recorders.
void forward_usr2(int) {
  if (child > 0) kill(child, SIGUSR2);
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

int start_local_ranks(int64_t ranks, const std::vector<std::string>& arguments) {
  if (const auto warning = warning_of_cores(ranks); !warning.empty()) {
    std::fprintf(stderr, "%s\n", warning.c_str());
  }
  const auto program = mpirun();
  if (geteuid() == 0) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  // To start ranks of this machine alone Open MPI needs no ssh, but it asks for one unless told so.
  if (std::system("command -v ssh > /dev/null") != 0) setenv("OMPI_MCA_plm", "isolated", 0);
  // Nor does it need fabrics between machines, for which it looks for a second.
  setenv("OMPI_MCA_btl", "^ofi", 0);
  setenv("SHERD_TOKEN", random_digits().c_str(), 0);
  // The ranks write to a pipe of mpirun's; who started them may have a terminal.
  setenv("SHERD_TERMINAL", terminal_for_ranks().c_str(), 0);
  std::vector<char> self(4096);
  TORCH_CHECK(
      readlink("/proc/self/exe", self.data(), self.size() - 1) > 0,
      "[launch] /proc/self/exe can't be read: ", std::strerror(errno));
  const auto count = std::to_string(ranks);
  // Quiet: a rank that fails says why itself, and mpirun's report of it says nothing more.
  std::vector<const char*> command{program.c_str(),   "--quiet",   "-n",   count.c_str(),
                                   "--oversubscribe", "--bind-to", "none", self.data()};
  for (const auto& argument : arguments) command.push_back(argument.c_str());
  command.push_back(nullptr);

  struct sigaction action {};
  action.sa_handler = forward;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_handler = forward_usr2;
  sigaction(SIGUSR2, &action, nullptr);
  RankErrors errors;
  child = fork();
  TORCH_CHECK(child >= 0, "[launch] can't start a process: ", std::strerror(errno));
  if (child == 0) {
    // A terminal's Ctrl-C reaches us alone: mpirun would end the ranks at once. Then it must not
    // read from the terminal either, and it ends with us.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    errors.use();
    execvp(program.c_str(), const_cast<char* const*>(command.data()));
    std::fprintf(
        stderr, "[launch] %s can't be started: %s\n", program.c_str(), std::strerror(errno));
    _exit(127);
  }
  errors.follow();
  const int code = exit_code_of_child(child);
  child = -1;
  errors.finish();
  if (code > 128 && !stopped) {
    const int signal = code - 128;
    std::fprintf(
        stderr, "[launch] a rank was ended by signal %d (%s)%s; the others were ended, too\n",
        signal, strsignal(signal),
        signal == SIGKILL ? ": the memory may have run out (dmesg says so)" : "");
  }
  return code;
}

bool stop_requested() {
  return stopped != 0;
}

void check_launched_ranks(int64_t wanted) {
  TORCH_CHECK_VALUE(
      !has_launcher() || wanted == launched_ranks(), "--ranks ", wanted,
      ": a launcher has already started ", launched_ranks(), " ranks; leave --ranks out");
}

void stop_with_launcher() {
  if (variable({"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK"})) prctl(PR_SET_PDEATHSIG, SIGTERM);
}

void share_cores() {
  if (std::getenv("OMP_NUM_THREADS")) return;
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(std::max<int64_t>(1, cores / local_ranks())));
}

}  // namespace sherd::app
