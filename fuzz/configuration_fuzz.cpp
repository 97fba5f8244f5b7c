// SPDX-License-Identifier: Apache-2.0
// Any bytes are a configuration, or lines of one in any order, and an override. It is refused in
// words, or what is written of it reads the same again.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "configuration/configuration.h"
#include "memory_file.h"

namespace {

constexpr std::array<const char*, 41> kPieces{"[model]\n",  "[data]\n",
                                              "[optim]\n",  "[train]\n",
                                              "[shard]\n",  "[precision]\n",
                                              "kind",       "dim",
                                              "heads",      "text",
                                              "tokens",     "seq",
                                              "betas",      "lr",
                                              "max_norm",   "clip",
                                              "steps",      "out",
                                              "recipe",     "pattern",
                                              " = ",        " = ",
                                              " = ",        "\n",
                                              "\n",         "\n",
                                              "64",         "-1",
                                              "1e-3",       "nan",
                                              "\"llama\"",  "\"a.txt\"",
                                              "\"\\n\\\"",  "[0.9, 0.95]",
                                              "[1, [2]]",   "{a = 1}",
                                              "true",       "99999999999999999999",
                                              "1979-05-27", "\"\"\"",
                                              "\x01"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  if (size % 8 != 0) {
    text = size % 2 == 0 ? "[data]\ntext = \"a.txt\"\n" : "";
    for (size_t i = 0; i < size; ++i) text += kPieces[data[i] % kPieces.size()];
  }
  const sherd::fuzz::MemoryFile file(text);
  std::vector<std::string> overrides;
  if (size % 3 == 0) overrides.push_back("model." + text.substr(0, 20));
  try {
    const auto first = to_text(sherd::read_configuration(file.path(), overrides));
    const sherd::fuzz::MemoryFile written(first);
    if (to_text(sherd::read_configuration(written.path())) != first) {
      std::fprintf(stderr, "another configuration is read than was written:\n%s", first.c_str());
      std::abort();
    }
  } catch (const sherd::ConfigurationError& error) {
    if (error.problems().empty()) std::abort();
  }
  return 0;
}
