// SPDX-License-Identifier: Apache-2.0
#include "data/token_check.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/across_ranks.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

using Json = nlohmann::json;
using Largest = TokenFile::Largest;

/// What the largest token is known for: the file as it is now.
Json identity_of(const TokenFile& file) {
  struct stat about {};
  if (stat(file.path().c_str(), &about) != 0) return {};
  return {
      {"bytes", about.st_size},
      {"modified_seconds", about.st_mtim.tv_sec},
      {"modified_nanoseconds", about.st_mtim.tv_nsec},
      {"token_bytes", static_cast<int64_t>(file.kind())}};
}

std::string kept_path(const TokenFile& file) {
  return file.path() + ".checked.json";
}

/// What an earlier run has found, if the file is still the same.
std::optional<Largest> read_kept(const TokenFile& file) {
  const auto json = read_json<Json>(kept_path(file)).value;
  if (!json.is_object() || !json.contains("file") || json["file"] != identity_of(file)) return {};
  const auto token = json.find("largest"), position = json.find("position");
  const bool fine = token != json.end() && position != json.end() && token->is_number_integer() &&
                    position->is_number_integer();
  if (!fine) return {};
  const Largest kept{token->get<int64_t>(), position->get<int64_t>()};
  const bool there =
      kept.position >= 0 && kept.position < file.size() && file[kept.position] == kept.token;
  return there ? std::optional(kept) : std::nullopt;
}

/// A folder that can't be written to only means that the next run reads the file, too.
void keep(const TokenFile& file, const Json& identity, const Largest& largest) {
  const auto fresh = kept_path(file) + ".part";
  bool written = false;
  {
    std::ofstream out(fresh, std::ios::trunc);
    out << Json{{"file", identity}, {"largest", largest.token}, {"position", largest.position}}
               .dump(1)
        << '\n'
        << std::flush;
    written = out.good();
  }
  if (!written || std::rename(fresh.c_str(), kept_path(file).c_str()) != 0) {
    std::remove(fresh.c_str());
  }
}

Largest find_largest(const TokenFile& file, const World& world) {
  // The other ranks of an emulated world read nothing.
  const bool alone = world.launcher() == Launcher::emulated;
  const int64_t ranks = alone ? 1 : world.size();
  const int64_t rank = alone ? 0 : world.rank();
  const int64_t each = (file.size() + ranks - 1) / ranks;
  const auto mine =
      file.largest(std::min(file.size(), rank * each), std::min(file.size(), (rank + 1) * each));
  const int64_t token = largest_of_ranks(world, {mine.token})[0];
  const int64_t nowhere = std::numeric_limits<int64_t>::min();
  // Of the places where it is, the first.
  return {token, -largest_of_ranks(world, {mine.token == token ? -mine.position : nowhere})[0]};
}

/// The first rank reads them for all.
void check_documents(const TokenFile& file, const World& world) {
  text_of_first_rank(world, [&] {
    file.check_order();
    return std::string();
  });
}

}  // namespace

void check_tokens(const TokenFile& file, int64_t vocab, const World& world) {
  if (file.documents() > 0 || file.has_mask()) check_documents(file, world);
  if (file.largest_possible() < vocab) return;
  const bool first = world.rank() == 0;
  const auto identity = first ? identity_of(file) : Json();
  const auto kept = first ? read_kept(file) : std::nullopt;
  const auto known = numbers_of_first_rank(
      world, {kept.has_value(), kept ? kept->token : 0, kept ? kept->position : 0});
  Largest largest{known[1], known[2]};
  if (known[0] == 0) {
    largest = find_largest(file, world);
    if (first) keep(file, identity, largest);
  }
  TORCH_CHECK_VALUE(
      largest.token < vocab, "[train.data] ", file.path(), ": token ", largest.position, " is ",
      largest.token, ", but model.vocab = ", vocab, ": set model.vocab to ", largest.token + 1,
      " or more, or data.dtype is not what it is");
}

}  // namespace sherd
