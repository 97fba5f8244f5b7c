// SPDX-License-Identifier: Apache-2.0
#include "data/sample_table.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace sherd {
namespace {

/// The free space of samples, where the first with enough of it is found in a few steps: a tree
/// whose nodes have the most of what is below them.
class FreeSpace {
 public:
  FreeSpace(int64_t samples, int64_t seq) {
    while (leaves_ < samples) leaves_ *= 2;
    most_.assign(static_cast<size_t>(2 * leaves_), seq);
  }
  /// Takes `count` tokens of the first sample that has them, and returns its number.
  int64_t take(int64_t count) {
    size_t node = 1;
    while (node < static_cast<size_t>(leaves_)) node = 2 * node + (most_[2 * node] < count);
    const auto sample = static_cast<int64_t>(node) - leaves_;
    most_[node] -= count;
    for (node /= 2; node > 0; node /= 2)
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    return sample;
  }

 private:
  int64_t leaves_ = 1;
  std::vector<int64_t> most_;
};

/// Documents without targets, of one token, are left out.
std::vector<SamplePiece> pieces_of_documents(
    const TokenFile& tokens, const SampleTable::Options& options) {
  auto begins = tokens.document_begins(options.begin, options.end);
  if (begins.empty() || begins.front() != options.begin)
    begins.insert(begins.begin(), options.begin);
  begins.push_back(options.end);
  std::vector<SamplePiece> result;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    for (int64_t at = begins[i]; at < begins[i + 1] - 1; at += options.seq) {
      result.push_back({at, std::min(options.seq, begins[i + 1] - 1 - at)});
    }
  }
  return result;
}

}  // namespace

SampleTable::SampleTable(const TokenFile& tokens, const Options& options)
    : tokens_(&tokens), options_(options) {
  TORCH_CHECK_VALUE(
      options.documents == Documents::cross || tokens.documents() > 0, "[train.data] ",
      tokens.path(), " does not say where documents begin, but data.documents = ",
      options.documents == Documents::packed ? "\"packed\"" : "\"separate\"",
      ": write it with `sherd tokenize`, or set data.documents = \"cross\"");
  const int64_t targets = options.end - options.begin - 1;
  if (options.documents == Documents::packed) {
    pack();
  } else {
    samples_ = (targets + (options.with_rest ? options.seq - 1 : 0)) / options.seq;
  }
}

void SampleTable::pack() {
  const auto pieces = pieces_of_documents(*tokens_, options_);
  FreeSpace space(std::ssize(pieces), options_.seq);
  std::vector<int64_t> sample_of;
  for (const auto& piece : pieces) {
    sample_of.push_back(space.take(piece.count));
    samples_ = std::max(samples_, sample_of.back() + 1);
  }
  first_.assign(static_cast<size_t>(samples_) + 1, 0);
  for (const int64_t sample : sample_of) ++first_[static_cast<size_t>(sample) + 1];
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  auto next = first_;
  packed_.resize(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    packed_[static_cast<size_t>(next[static_cast<size_t>(sample_of[i])]++)] = pieces[i];
  }
}

std::vector<SamplePiece> SampleTable::pieces(int64_t sample) const {
  if (options_.documents == Documents::packed) {
    const auto* first = first_.data() + sample;
    return {packed_.begin() + first[0], packed_.begin() + first[1]};
  }
  const int64_t begin = options_.begin + sample * options_.seq;
  const int64_t end = std::min(begin + options_.seq, options_.end - 1);
  if (options_.documents == Documents::cross) return {{begin, end - begin}};
  std::vector<SamplePiece> result;
  int64_t at = begin;
  for (const int64_t next : tokens_->document_begins(begin + 1, end)) {
    result.push_back({at, next - at});
    at = next;
  }
  result.push_back({at, end - at});
  return result;
}

}  // namespace sherd
