// SPDX-License-Identifier: Apache-2.0
#include "comm/launch.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <map>

namespace sherd {
namespace {

using Environment = std::map<std::string, std::string>;

Launch launch(const Environment& environment) {
  return launch_from([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Environment& environment) {
  try {
    launch(environment);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(LaunchTest, IsAloneWithoutALauncher) {
  const auto alone = launch({});
  EXPECT_EQ(alone.launcher, Launcher::alone);
  EXPECT_EQ(alone.size, 1);
}

TEST(LaunchTest, ReadsMpirun) {
  const auto found = launch(
      {{"OMPI_COMM_WORLD_RANK", "3"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(found.launcher, Launcher::mpirun);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.size, 4);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_TRUE(found.has_mpi);
}

TEST(LaunchTest, ReadsTorchrunEvenUnderMpirun) {
  const auto found = launch(
      {{"TORCHELASTIC_RUN_ID", "none"},
       {"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "node0"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
       {"TORCHELASTIC_RESTART_COUNT", "2"},
       {"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(found.launcher, Launcher::torchrun);
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.host, "node0");
  EXPECT_EQ(found.port, 29500);
  EXPECT_TRUE(found.launcher_has_store);
  EXPECT_EQ(found.attempt, 2) << "its store has keys of the ranks that ended before";
  EXPECT_FALSE(found.has_mpi);
}

TEST(LaunchTest, ReadsSrunWithAndWithoutPmix) {
  Environment environment{
      {"SLURM_PROCID", "6"},
      {"SLURM_STEP_NUM_TASKS", "8"},
      {"SLURM_STEP_NUM_NODES", "2"},
      {"SLURM_LOCALID", "2"},
      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"},
      {"SLURM_JOB_ID", "123456"}};
  auto found = launch(environment);
  EXPECT_EQ(found.launcher, Launcher::srun);
  EXPECT_EQ(found.rank, 6);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_FALSE(found.has_mpi);
  EXPECT_EQ(found.host, "10.0.0.1");
  EXPECT_EQ(found.port, 20000 + 123456 % 20000);
  environment["PMIX_RANK"] = "6";
  EXPECT_TRUE(launch(environment).has_mpi);
}

TEST(LaunchTest, IgnoresABatchScriptOfSlurmThatIsNoStep) {
  EXPECT_EQ(
      launch({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}}).launcher,
      Launcher::alone);
}

TEST(LaunchTest, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_NE(refusal({{"RANK", "1"}}).find("WORLD_SIZE is not set"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK is 'x'"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}).find("RANK is '-1'"), std::string::npos);
  EXPECT_NE(
      refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})
          .find("rank 2 of a world of 2"),
      std::string::npos);
  EXPECT_NE(
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}})
          .find("MASTER_PORT"),
      std::string::npos);
  EXPECT_NE(
      refusal({{"OMPI_COMM_WORLD_RANK", "0"}}).find("OMPI_COMM_WORLD_SIZE"), std::string::npos);
}

}  // namespace
}  // namespace sherd
