// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/comm/communicator.h"

namespace sherd {

// Numbers and texts that the ranks of a communicator exchange, on the current stream.

int64_t hash_of(const std::string& text);
/// Returns the largest of the ranks' values, one by one. All ranks pass as many. Blocks.
std::vector<int64_t> max_over(
    Communicator& communicator, c10::Device device, const std::vector<int64_t>& values);
/// Returns the lowest rank that passes true, if there is one. Blocks.
std::optional<int64_t> lowest_rank(Communicator& communicator, c10::Device device, bool is_true);
/// Returns the text of one rank on all ranks. Blocks.
std::string text_of(
    Communicator& communicator, c10::Device device, int64_t rank, const std::string& mine);
/// Throws on all ranks, naming two sides, unless all pass the same text about what they do. Blocks.
void require_same(
    Communicator& communicator, c10::Device device, const char* what, const std::string& text);

/// The words of one rank.
struct Statement {
  int64_t rank = 0;
  std::string text;
};
/// Returns the texts of the first `most` ranks whose text is not empty, in the order of the ranks.
/// Takes the memory of one text at a time, however many ranks there are. Blocks.
std::vector<Statement> collect(
    Communicator& communicator, c10::Device device, const std::string& text, size_t most);

/// Returns what rank 0 and another rank say if not all say the same; nothing if they do. Blocks.
std::optional<std::pair<Statement, Statement>> differing_texts(
    Communicator& communicator, c10::Device device, const std::string& text);

/// Returns the number of the first line that differs; of the last one if none does.
size_t differing_line(const std::string& one, const std::string& other);
/// Returns a line of a text, counted from 0.
std::string line_of(const std::string& text, size_t number);
/// Returns what two ranks say where their texts first differ.
std::string difference_of(const Statement& one, const Statement& other);

}  // namespace sherd
