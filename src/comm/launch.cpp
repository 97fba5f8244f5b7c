// SPDX-License-Identifier: Apache-2.0
#include "comm/launch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace sherd {
namespace {

class Variables {
 public:
  explicit Variables(const std::function<const char*(const char*)>& get) : get_(get) {}

  bool has(const char* name) const { return get_(name) != nullptr; }

  std::string word(const char* name, const char* whose) const {
    const char* value = get_(name);
    TORCH_CHECK_VALUE(
        value != nullptr && *value != '\0', "[comm.world] ", whose, " started this process, but ",
        name, " is not set: start it through the launcher itself, or set ", name);
    return value;
  }

  int64_t number(const char* name, const char* whose) const {
    const auto value = word(name, whose);
    int64_t result = 0;
    const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), result);
    TORCH_CHECK_VALUE(
        code == std::errc() && end == value.data() + value.size() && result >= 0, "[comm.world] ",
        name, " is '", value, "'; it must be a whole number, 0 or more");
    return result;
  }

  int64_t number_or(const char* name, const char* whose, int64_t otherwise) const {
    return has(name) ? number(name, whose) : otherwise;
  }

 private:
  const std::function<const char*(const char*)>& get_;
};

Launch from_torchrun(const Variables& variables) {
  const char* whose = "torchrun";
  Launch launch;
  launch.launcher = Launcher::torchrun;
  launch.rank = variables.number("RANK", whose);
  launch.size = variables.number("WORLD_SIZE", whose);
  launch.local_rank = variables.number_or("LOCAL_RANK", whose, 0);
  launch.local_size = variables.number_or("LOCAL_WORLD_SIZE", whose, 1);
  launch.host = variables.word("MASTER_ADDR", whose);
  launch.port = static_cast<int>(variables.number("MASTER_PORT", whose));
  // torchrun's store outlives ranks that it starts again; their keys must not meet older ones.
  launch.attempt = variables.number_or("TORCHELASTIC_RESTART_COUNT", whose, 0);
  launch.launcher_has_store = variables.has("TORCHELASTIC_USE_AGENT_STORE") &&
                              variables.word("TORCHELASTIC_USE_AGENT_STORE", whose) == "True";
  return launch;
}

Launch from_mpirun(const Variables& variables) {
  const char* whose = "mpirun";
  Launch launch;
  launch.launcher = Launcher::mpirun;
  launch.has_mpi = true;
  launch.rank = variables.number("OMPI_COMM_WORLD_RANK", whose);
  launch.size = variables.number("OMPI_COMM_WORLD_SIZE", whose);
  launch.local_rank = variables.number_or("OMPI_COMM_WORLD_LOCAL_RANK", whose, 0);
  launch.local_size = variables.number_or("OMPI_COMM_WORLD_LOCAL_SIZE", whose, 1);
  return launch;
}

Launch from_srun(const Variables& variables) {
  const char* whose = "srun";
  Launch launch;
  launch.launcher = Launcher::srun;
  launch.rank = variables.number("SLURM_PROCID", whose);
  launch.size = variables.number("SLURM_STEP_NUM_TASKS", whose);
  launch.local_rank = variables.number_or("SLURM_LOCALID", whose, 0);
  launch.local_size =
      launch.size / std::max<int64_t>(variables.number_or("SLURM_STEP_NUM_NODES", whose, 1), 1);
  launch.has_mpi = variables.has("PMIX_RANK") || variables.has("PMI_RANK");
  if (!launch.has_mpi) {
    // In a batch job srun runs on the first node, as task 0 does; if it is started elsewhere,
    // MASTER_ADDR must say where task 0 is. A port made from the job's number keeps jobs apart.
    launch.host = variables.has("MASTER_ADDR") ? variables.word("MASTER_ADDR", whose)
                                               : variables.word("SLURM_LAUNCH_NODE_IPADDR", whose);
    const int64_t derived = 20000 + variables.number_or("SLURM_JOB_ID", whose, 0) % 20000;
    launch.port = static_cast<int>(variables.number_or("MASTER_PORT", whose, derived));
  }
  return launch;
}

}  // namespace

Launch launch_from(const std::function<const char*(const char*)>& get) {
  const Variables variables(get);
  Launch launch;
  // The innermost launcher counts: torchrun may itself be started by mpirun or srun, mpirun by
  // srun.
  if (variables.has("TORCHELASTIC_RUN_ID")) {
    launch = from_torchrun(variables);
  } else if (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE")) {
    launch = from_mpirun(variables);
  } else if (variables.has("RANK") || variables.has("WORLD_SIZE")) {
    launch = from_torchrun(variables);
  } else if (variables.has("SLURM_STEP_NUM_TASKS")) {
    launch = from_srun(variables);
  } else {
    // Without this check each rank would train a model of its own, as a world of one.
    TORCH_CHECK_VALUE(
        variables.number_or("PMI_SIZE", "another MPI", 1) == 1, "[comm.world] PMI_SIZE is ",
        variables.word("PMI_SIZE", "another MPI"),
        ": the mpirun of another MPI started this process; ", "use Open MPI's (.venv/bin/mpirun)");
  }
  TORCH_CHECK_VALUE(
      launch.size >= 1 && launch.rank < launch.size, "[comm.world] the launcher says rank ",
      launch.rank, " of a world of ", launch.size, "; ranks count from 0 to the size less one");
  TORCH_CHECK_VALUE(
      launch.port >= 0 && launch.port < 65536, "[comm.world] MASTER_PORT is ", launch.port,
      "; it must be below 65536");
  return launch;
}

Launch launch_from_environment() {
  return launch_from([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace sherd
