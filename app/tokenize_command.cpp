// SPDX-License-Identifier: Apache-2.0
#include "tokenize_command.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "files/quoted_text.h"
#include "files/same_file.h"
#include "rendered_chats.h"

namespace sherd::app {
namespace {

std::string text_of(const TokenizeResult& result, const std::string& out) {
  std::ostringstream text;
  text << out << ": " << result.tokens << " tokens, ";
  if (result.tokens > 0) {
    text << std::fixed << std::setprecision(2)
         << static_cast<double>(result.bytes) / static_cast<double>(result.tokens)
         << " bytes each, ";
  }
  text << "of a vocabulary of " << result.vocab << ", as " << result.dtype << "; "
       << result.documents << (result.documents == 1 ? " document" : " documents");
  const bool masks = result.targets < result.tokens;
  if (masks) text << ", " << result.targets << " tokens to predict";
  text << ". To train on it:\n"
       << "\n[model]\nvocab = " << result.vocab << "\n\n[data]\ntokens = " << quoted(out)
       << "\ndtype = " << quoted(result.dtype) << '\n';
  if (masks) text << "documents = \"packed\"\n";
  return text.str();
}

}  // namespace

TokenizeCommand::TokenizeCommand(CLI::App& app)
    : command_(app.add_subcommand("tokenize", "Convert texts to a token file")) {
  command_
      ->add_option(
          "--tokenizer", options_.tokenizer, "A Hugging Face tokenizer.json with byte-level BPE")
      ->type_name("FILE")
      ->required();
  command_->add_option("--out", options_.out, "The file to write (data.tokens)")
      ->type_name("FILE")
      ->required();
  command_
      ->add_option(
          "--end", options_.end, "A token to write after each text, such as <|end_of_text|>")
      ->type_name("TOKEN");
  command_
      ->add_option(
          "--dtype", options_.dtype,
          "uint16 or uint32; default: the smallest that fits the vocabulary")
      ->type_name("DTYPE");
  command_
      ->add_option(
          "--template", template_,
          "The chat template for conversations, or a folder that has one; default: the tokenizer's "
          "folder")
      ->type_name("PATH");
  command_->add_flag(
      "--plain", options_.plain,
      "Write token numbers and nothing else: no documents and no masks, for other programs");
  command_
      ->add_option(
          "TEXT", options_.texts,
          "UTF-8 text files, one document each, or .jsonl files with a document in each line: "
          "{\"text\": …}, or {\"prompt\": …, \"completion\": …} or {\"messages\": […]}, of which "
          "the "
          "completion or the assistant's words are to be predicted")
      ->required();
}

int TokenizeCommand::run() const {
  for (const auto& text : options_.texts) {
    TORCH_CHECK_VALUE(
        !same_file(options_.out, text), "[tokenize] out = ", options_.out,
        " is one of the texts: choose another name");
  }
  const auto folder = std::filesystem::path(options_.tokenizer).parent_path();
  const RenderedChats chats(
      options_.texts, template_.value_or(folder.empty() ? "." : folder.string()));
  auto options = options_;
  options.texts = chats.texts();
  std::cout << text_of(tokenize(options), options.out);
  return 0;
}

}  // namespace sherd::app
