// SPDX-License-Identifier: Apache-2.0
#include "tokenize_command.h"

#include <c10/util/Exception.h>

#include <iomanip>
#include <iostream>
#include <sstream>

namespace sherd::app {
namespace {

/// A TOML string.
std::string quoted(const std::string& text) {
  std::ostringstream into;
  into << '"';
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      into << '\\' << letter;
    } else if (byte < 0x20 || byte == 0x7F) {
      into << "\\u" << std::hex << std::setw(4) << std::setfill('0') << int{byte} << std::dec;
    } else {
      into << letter;
    }
  }
  into << '"';
  return into.str();
}

std::string text_of(const TokenizeResult& result, const std::string& out) {
  std::ostringstream text;
  text << out << ": " << result.tokens << " tokens, ";
  if (result.tokens > 0) {
    text << std::fixed << std::setprecision(2)
         << static_cast<double>(result.bytes) / static_cast<double>(result.tokens)
         << " bytes each, ";
  }
  text << "of a vocabulary of " << result.vocab << ", as " << result.dtype << ". To train on it:\n"
       << "\n[model]\nvocab = " << result.vocab << "\n\n[data]\ntokens = " << quoted(out)
       << "\ndtype = " << quoted(result.dtype) << '\n';
  return text.str();
}

}  // namespace

TokenizeCommand::TokenizeCommand(CLI::App& app)
    : command_(app.add_subcommand("tokenize", "Turn texts into a file of token numbers")) {
  command_
      ->add_option(
          "--tokenizer", options_.tokenizer, "A tokenizer.json of Hugging Face's, byte-level BPE")
      ->type_name("FILE")
      ->required();
  command_->add_option("--out", options_.out, "The file to write (data.tokens)")
      ->type_name("FILE")
      ->required();
  command_
      ->add_option("--end", options_.end, "A token to write after each text: <|end_of_text|>, say")
      ->type_name("TOKEN");
  command_
      ->add_option(
          "--dtype", options_.dtype, "uint16 or uint32; by default the smaller that will do")
      ->type_name("DTYPE");
  command_->add_option("TEXT", options_.texts, "Files of UTF-8, one document each")->required();
}

int TokenizeCommand::run() const {
  try {
    std::cout << text_of(tokenize(options_), options_.out);
  } catch (const c10::ValueError& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  }
  return 0;
}

}  // namespace sherd::app
