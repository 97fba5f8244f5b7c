// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "data/token_file.h"

namespace sherd {

/// How samples are made of documents.
enum class Documents : uint8_t {
  cross,     ///< samples are cut from the tokens as they are; a token sees earlier documents
  separate,  ///< the same samples, but no token sees or predicts another document's
  packed,    ///< whole documents, as many as fit; only longer ones than a sample are cut
};

/// Inputs of a sample that follow one another in the file. Their targets are one token further.
struct SamplePiece {
  int64_t begin = 0;
  int64_t count = 0;
};

/// The pieces that samples of `seq` tokens consist of, for a range of a file's tokens. Packed
/// documents go, in their order, into the first sample with space for them; the table has 24 bytes
/// for each document then, and nothing otherwise.
class SampleTable {
 public:
  struct Options {
    int64_t seq = 0;
    Documents documents = Documents::cross;
    int64_t begin = 0;  ///< of the range
    int64_t end = 0;
    bool with_rest = false;  ///< there is a last sample that is not full
  };
  /// Keeps a reference to the file. Throws if it has no documents and they are not to be crossed.
  SampleTable(const TokenFile& tokens, const Options& options);

  int64_t samples() const { return samples_; }
  std::vector<SamplePiece> pieces(int64_t sample) const;

 private:
  void pack();

  const TokenFile* tokens_;
  Options options_;
  int64_t samples_ = 0;
  std::vector<SamplePiece> packed_;  // of all samples
  std::vector<int64_t> first_;       // of each sample's among them, and then their number
};

}  // namespace sherd
