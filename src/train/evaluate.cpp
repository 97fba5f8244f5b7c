// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/across_ranks.h"
#include "data/token_file.h"
#include "data/tokenizer/text_tokens.h"
#include "files/parse_json.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"

namespace sherd {
namespace {

constexpr int64_t kUsualSeq = 1024;

/// The tokens of a file, in memory where they are made of a text.
class EvaluatedTokens {
 public:
  EvaluatedTokens(const EvaluateOptions& options, int64_t vocab) : vocab_(vocab) {
    const auto& dtype = options.token_dtype;
    TORCH_CHECK_VALUE(
        !dtype || *dtype == "uint16" || *dtype == "uint32", "[eval] --tokens ", dtype.value_or(""),
        ": it must be uint16 or uint32");
    if (dtype) {
      file_.emplace(
          options.data, *dtype == "uint16" ? TokenFile::Kind::uint16 : TokenFile::Kind::uint32);
    }
    std::error_code code;
    const auto& model = options.model;
    if (!dtype || model.tokenizer || vocab == 256 ||
        std::filesystem::exists(std::filesystem::path(model.folder) / "tokenizer.json", code)) {
      text_.emplace(model.folder, vocab, model.tokenizer);
    }
    if (!dtype) TextTokens::check_file(options.data);
  }

  void tokenize(const std::string& path) {
    if (!file_) tokens_ = text_->encode_file(path);
  }
  int64_t size() const { return file_ ? file_->size() : std::ssize(tokens_); }
  void read(int64_t begin, int64_t count, int64_t* into) const {
    if (file_) return file_->read(begin, count, vocab_, into);
    std::copy_n(tokens_.begin() + begin, count, into);
  }
  bool knows_bytes() const { return text_.has_value(); }
  int64_t bytes_of(int64_t token) { return std::ssize(text_->bytes_of(token)); }

 private:
  int64_t vocab_;
  std::optional<TokenFile> file_;
  std::optional<TextTokens> text_;
  std::vector<int64_t> tokens_;
};

/// Sequences [B, seq] from the first of some windows of the tokens on. What is missing of the last
/// one has no targets, and comes after all that has.
Batch windows_of(
    const EvaluatedTokens& tokens, int64_t first, int64_t count, int64_t seq, c10::Device device) {
  const auto longs = at::TensorOptions(at::kLong);
  Batch batch{at::zeros({count, seq}, longs), at::full({count, seq}, -100, longs)};
  std::vector<int64_t> row(static_cast<size_t>(seq) + 1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = (first + i) * seq;
    const int64_t targets = std::clamp<int64_t>(tokens.size() - 1 - begin, 0, seq);
    if (targets == 0) continue;
    tokens.read(begin, targets + 1, row.data());
    std::copy_n(row.data(), targets, batch.tokens.mutable_data_ptr<int64_t>() + i * seq);
    std::copy_n(row.data() + 1, targets, batch.targets.mutable_data_ptr<int64_t>() + i * seq);
  }
  batch.tokens = batch.tokens.to(device);
  batch.targets = batch.targets.to(device);
  return batch;
}

/// Without an option, what the model was made for, if that is shorter than usual.
int64_t chosen_seq(const EvaluateOptions& options, const LlamaOptions& base) {
  if (options.seq > 0) return options.seq;
  const int64_t window = base.sliding_window > 0 ? base.sliding_window : kUsualSeq;
  const auto config = parse_json<nlohmann::json>(base.config);
  int64_t longest = kUsualSeq;
  if (config.is_object() && config.value.contains("max_position_embeddings")) {
    const auto& entry = config.value["max_position_embeddings"];
    if (entry.is_number_integer()) longest = entry.get<int64_t>();
  }
  return std::max<int64_t>(1, std::min({kUsualSeq, window, longest}));
}

LlamaOptions base_of_evaluation(const EvaluateOptions& options) {
  const auto base = base_of_folder(options.model, 0);
  return base_of_folder(options.model, chosen_seq(options, base));
}

/// The sum of the targets' losses, of all ranks. Collective.
double summed_loss(FolderModel& folder, const EvaluatedTokens& tokens, int64_t seq, int64_t batch) {
  const c10::NoGradGuard no_grad;
  const auto& world = folder.world();
  auto& model = folder.model();
  auto sum = at::zeros({1}, at::TensorOptions().dtype(at::kDouble).device(world.device()));
  const int64_t windows = (tokens.size() - 1 + seq - 1) / seq;
  for (int64_t first = 0; first < windows; first += batch * world.size()) {
    const int64_t mine = first + batch * world.rank();
    const int64_t count = std::clamp<int64_t>(windows - mine, 0, batch);
    if (count == 0 && !model.exchanges()) {
      idle_pass(model);
      continue;
    }
    const auto given = windows_of(tokens, mine, std::max<int64_t>(1, count), seq, world.device());
    sum += call(model, given);
  }
  return sum_of_ranks(world, sum.item<double>());
}

int64_t bytes_of_targets(EvaluatedTokens& tokens) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int64_t> block(kBlock);
  int64_t bytes = 0;
  for (int64_t begin = 1; begin < tokens.size(); begin += kBlock) {
    const int64_t count = std::min(kBlock, tokens.size() - begin);
    tokens.read(begin, count, block.data());
    for (int64_t i = 0; i < count; ++i) bytes += tokens.bytes_of(block[static_cast<size_t>(i)]);
  }
  return bytes;
}

}  // namespace

void check_evaluate(const EvaluateOptions& options) {
  const auto base = base_of_evaluation(options);
  EvaluatedTokens(options, base.vocab);
}

Evaluation evaluate(const EvaluateOptions& options) {
  const auto base = base_of_evaluation(options);
  EvaluatedTokens tokens(options, base.vocab);
  tokens.tokenize(options.data);
  TORCH_CHECK_VALUE(
      tokens.size() > 1, "[eval] ", options.data, " has ", tokens.size(),
      " tokens; there must be two or more, of which each but the first is predicted");
  Evaluation result{.targets = tokens.size() - 1};
  result.seq = std::min(chosen_seq(options, base), result.targets);
  FolderModel folder(options.model, result.seq);
  result.first_rank = folder.world().rank() == 0;
  const double sum = summed_loss(folder, tokens, result.seq, options.batch);
  result.loss = sum / static_cast<double>(result.targets);
  if (tokens.knows_bytes()) result.bytes = bytes_of_targets(tokens);
  return result;
}

}  // namespace sherd
