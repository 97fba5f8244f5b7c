// SPDX-License-Identifier: Apache-2.0
#include "folder_arguments.h"

#include <string>
#include <vector>

#include "at_least_one.h"
#include "local_ranks.h"

namespace sherd::app {

void FolderArguments::add_to(CLI::App& command) {
  command
      .add_option(
          "FOLDER", options.folder,
          "A Hugging Face folder (config.json and safetensors), such as a checkpoint of a run")
      ->required();
  command
      .add_option(
          "--tokenizer", options.tokenizer, "A tokenizer.json; default: the one in the folder")
      ->type_name("FILE");
  command.add_option("--ranks", ranks, "Number of ranks to start on this machine; default: 1")
      ->check(at_least_one());
  command.add_option("--device", options.device, "auto, cpu or cuda; default: auto")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command
      .add_option("--dtype", options.dtype, "fp32, bf16 or fp16; default: bf16 on GPUs, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
}

int FolderArguments::run(
    char** arguments,
    const std::function<void()>& check,
    const std::function<int()>& command) const {
  if (ranks.value_or(1) > 1 && !has_launcher()) {
    check();  // while one process can say what is wrong
    std::vector<std::string> words;
    for (char** word = arguments + 1; *word; ++word) words.emplace_back(*word);
    return start_local_ranks(*ranks, words);
  }
  if (ranks) check_launched_ranks(*ranks);
  stop_with_launcher();
  share_cores();
  return command();
}

}  // namespace sherd::app
