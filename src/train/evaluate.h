// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sherd/export.h"
#include "train/folder_model.h"

namespace sherd {

struct EvaluateOptions {
  FolderOptions model{};
  std::string data;                          ///< a UTF-8 text, or a file of token numbers
  std::optional<std::string> token_dtype{};  ///< uint16 or uint32: `data` has token numbers
  int64_t seq = 0;    ///< tokens that a token can see; 0: 1024, or what the model was made for
  int64_t batch = 1;  ///< sequences that a rank computes at once
};

struct Evaluation {
  double loss = 0;                 ///< mean of the targets, in nats
  int64_t targets = 0;             ///< all tokens but the first
  std::optional<int64_t> bytes{};  ///< of the targets; nothing without a tokenizer
  int64_t seq = 0;
  bool first_rank = true;
};

/// Reads what the model's folder and the data's file say. Throws what evaluate() would throw on
/// every rank.
SHERD_API void check_evaluate(const EvaluateOptions& options);

/// Measures how well the model of a Hugging Face folder predicts a file, in sequences of `seq`
/// tokens that do not see each other. Collective; blocks.
SHERD_API Evaluation evaluate(const EvaluateOptions& options);

}  // namespace sherd
