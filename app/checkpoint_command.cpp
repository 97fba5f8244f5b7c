// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_command.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "child_process.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/checkpoint/inspect.h"
#include "tools.h"

namespace sherd::app {

CheckpointCommand::CheckpointCommand(CLI::App& app)
    : command_(
          app.add_subcommand("checkpoint", "Inspect, verify, compare and import checkpoints")) {
  command_->require_subcommand(1);
  show_ = command_->add_subcommand("show", "Print the state, files and tensors of a checkpoint");
  verify_ = command_->add_subcommand("verify", "Compare every byte with its checksum");
  diff_ = command_->add_subcommand("diff", "Compare two checkpoints; exit code 1 if they differ");
  import_ = command_->add_subcommand(
      "import", "Convert a checkpoint of torch.distributed.checkpoint (DCP)");
  for (auto* one : {show_, verify_, diff_, import_}) {
    one->add_option("DIR", folder_, "The checkpoint's folder")->required();
  }
  diff_->add_option("OTHER", other_, "The other checkpoint's folder")->required();
  import_
      ->add_option(
          "--out", other_, "The folder to create; RUN/step-<number> to continue a run from it")
      ->required();
  import_->add_option("--config", config_, "The model's Hugging Face config.json");
  import_->add_option("--samples", samples_, "Number of samples that it was trained on")
      ->check(CLI::NonNegativeNumber);
}

int CheckpointCommand::compare() const {
  const auto differences = compare_checkpoints(folder_, other_);
  for (const auto& one : differences) {
    std::cout << one.tensor << ": ";
    std::cout << one.what;
    if (one.largest != 0) {  // also if it is NaN
      if (!one.what.empty()) std::cout << "; ";
      std::cout << "largest difference " << one.largest << ", relative " << one.relative;
    }
    std::cout << '\n';
  }
  if (differences.empty()) std::cout << "identical\n";
  return differences.empty() ? 0 : 1;
}

int CheckpointCommand::import() const {
  std::vector<std::string> words{python(), import_script(), folder_, other_};
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
  if (show_->parsed()) std::cout << describe_checkpoint(folder_);
  if (verify_->parsed()) {
    verify_checkpoint(folder_);
    std::cout << folder_ << " is complete and undamaged\n";
  }
  if (diff_->parsed()) return compare();
  if (import_->parsed()) return import();
  return 0;
}

}  // namespace sherd::app
