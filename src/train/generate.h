// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sherd/export.h"
#include "train/continuation.h"
#include "train/folder_model.h"

namespace sherd {

struct GenerateOptions {
  FolderOptions model{};
  std::string prompt;
  bool prefix = true;                  ///< begin with what the tokenizer puts in front of a text
  bool ignore_end = false;             ///< go on after a token that ends the text
  ContinuationOptions continuation{};  ///< `ends` are those of the folder
};

struct Generated {
  std::vector<int64_t> prompt{};  ///< its tokens
  std::vector<int64_t> tokens{};  ///< those after it, with the one that ends the text
  std::string text{};             ///< of the tokens, without the one that ends the text
  bool ended = false;             ///< by such a token
  double seconds = 0;             ///< from the first token to the last
  bool first_rank = true;
};

/// Reads the prompt and what the model's folder says about it. Throws what generate() would throw
/// on every rank.
SHERD_API void check_generate(const GenerateOptions& options);

/// Continues a prompt with the model of a Hugging Face folder. Calls `show`, on the first rank,
/// with each piece of text as soon as its characters are whole. Collective; blocks.
SHERD_API Generated
generate(const GenerateOptions& options, const std::function<void(const std::string&)>& show = {});

}  // namespace sherd
