// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_command.h"

#include <c10/util/Exception.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "sherd/checkpoint/checkpoint.h"
#include "sherd/checkpoint/inspect.h"

namespace sherd::app {
namespace {

/// Runs a program and waits; its exit code.
int run_program(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "[checkpoint] no further process: ", std::strerror(errno));
  if (child == 0) {
    execv(arguments[0], arguments.data());
    std::cerr << arguments[0] << " can't be started: " << std::strerror(errno)
              << ": ./sherd sets it up\n";
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

CheckpointCommand::CheckpointCommand(CLI::App& app)
    : command_(app.add_subcommand("checkpoint", "Look at checkpoints, or take over others")) {
  command_->require_subcommand(1);
  show_ = command_->add_subcommand("show", "Print what a checkpoint has");
  verify_ = command_->add_subcommand("verify", "Hold every byte against its checksum");
  diff_ = command_->add_subcommand("diff", "Compare two; exit code 1 where they differ");
  import_ = command_->add_subcommand(
      "import", "Make one of a checkpoint of torch.distributed.checkpoint (DCP)");
  for (auto* one : {show_, verify_, diff_, import_}) {
    one->add_option("DIR", folder_, "The checkpoint's folder")->required();
  }
  diff_->add_option("OTHER", other_, "The other checkpoint's folder")->required();
  import_->add_option("--out", other_, "The folder to make: RUN/step-<number> to go on from it")
      ->required();
  import_->add_option("--config", config_, "The model's config.json, as Hugging Face has it");
  import_->add_option("--samples", samples_, "How many samples it was trained on")
      ->check(CLI::NonNegativeNumber);
}

int CheckpointCommand::compare() const {
  const auto differences = compare_checkpoints(folder_, other_);
  for (const auto& one : differences) {
    std::cout << one.tensor << ": ";
    if (!one.what.empty()) {
      std::cout << one.what << '\n';
    } else {
      std::cout << "at most " << one.largest << " apart, relative " << one.relative << '\n';
    }
  }
  if (differences.empty()) std::cout << "the same, bit by bit\n";
  return differences.empty() ? 0 : 1;
}

int CheckpointCommand::import() const {
  std::vector<std::string> words{SHERD_PYTHON, SHERD_IMPORT, folder_, other_};
  if (config_) words.insert(words.end(), {"--config", *config_});
  if (const int code = run_program(words)) return code;
  const auto about = nlohmann::json::parse(std::ifstream(other_ + "/import.json"));
  std::optional<AdamW::Progress> progress;
  if (about["updates"].is_number() && about["updates"] > 0) {
    progress = {about["updates"].get<int64_t>()};
  }
  const int64_t step = about["step"].is_number() ? about["step"].get<int64_t>() : 0;
  const int64_t found = about["samples"].is_number() ? about["samples"].get<int64_t>() : 0;
  seal_checkpoint(
      other_, {{"step", step}, {"samples", samples_.value_or(found)}, {"seed", 0}}, progress);
  std::cout << other_ << ": step " << step << "; " << (progress ? "with" : "without")
            << " the optimizer's state\n";
  return 0;
}

int CheckpointCommand::run() const {
  try {
    if (show_->parsed()) std::cout << describe_checkpoint(folder_);
    if (verify_->parsed()) {
      verify_checkpoint(folder_);
      std::cout << folder_ << " is whole\n";
    }
    if (diff_->parsed()) return compare();
    if (import_->parsed()) return import();
  } catch (const c10::ValueError& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 2;
  }
  return 0;
}

}  // namespace sherd::app
