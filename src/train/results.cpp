// SPDX-License-Identifier: Apache-2.0
#include "train/results.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "configuration/keys.h"
#include "files/same_file.h"
#include "train/earlier_run.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// visit(section.key, path) for each file that is read.
template <class Any, class Visitor>
void each_path(Any& configuration, const Visitor& visit) {
  sections(configuration, [&](const char* section, auto& keys_of) {
    keys(keys_of, [&](const char* name, auto& value, const Key& key) {
      if constexpr (std::is_convertible_v<decltype(value), std::optional<std::string>>) {
        if constexpr (!std::is_convertible_v<decltype(value), std::string>) {
          if (key.path && value) visit(std::string(section) + "." + name, *value);
        }
      }
    });
  });
}

}  // namespace

void make_results_folder(const std::string& out) {
  std::error_code code;
  fs::create_directories(out, code);
  TORCH_CHECK_VALUE(
      !code && fs::is_directory(out), "[train] train.out = ", out,
      " can't be created: ", code ? code.message() : "it is a file", ": choose another folder");
  const auto probe = fs::path(out) / (".probe-" + std::to_string(getpid()));
  const bool written = static_cast<bool>(std::ofstream(probe) << "probe" << std::flush);
  const int error = errno;
  fs::remove(probe, code);
  TORCH_CHECK_VALUE(
      written, "[train] train.out = ", out, " can't be written to: ", std::strerror(error),
      ": choose another folder, or check its permissions and the disk");
}

Results::Results(const Configuration& configuration) : configuration_(configuration) {
  const auto& out = configuration.train.out;
  make_results_folder(out);
  each_path(configuration, [&](const std::string& key, const std::string& input) {
    for (const char* name : {"configuration.toml", "metrics.jsonl", "report.html"}) {
      TORCH_CHECK_VALUE(
          !same_file(input, path(name)), "[train] ", key, " = ", input,
          " would be overwritten by the results: choose another train.out than ", out);
    }
  });
  lock_ = std::make_unique<RunLock>(out);
  std::error_code code;
  fs::remove(path("report.html"), code);
}

std::string Results::path(const std::string& name) const {
  return (fs::path(configuration_.train.out) / name).string();
}

void Results::write_configuration(int64_t step) const {
  const auto whole = path("configuration.toml");
  if (same_file(configuration_.source, whole)) return;
  const auto text = to_text(with_absolute_paths(configuration_));
  std::ifstream in(whole, std::ios::binary);
  const std::string before{std::istreambuf_iterator<char>(in), {}};
  if (before == text) return;
  if (!before.empty()) {
    auto kept = path("configuration-" + std::to_string(step) + ".toml");
    for (int64_t i = 2; fs::exists(kept); ++i) {
      kept = path("configuration-" + std::to_string(step) + "-" + std::to_string(i) + ".toml");
    }
    fs::rename(whole, kept);
  }
  write("configuration.toml", text);
}

void Results::write(const std::string& name, const std::string& text) const {
  const auto whole = path(name);
  const auto fresh = whole + ".part";
  {
    std::ofstream file(fresh, std::ios::trunc | std::ios::binary);
    file << text << std::flush;
    TORCH_CHECK(file, "[train] ", fresh, " can't be written: check train.out and the disk");
  }
  TORCH_CHECK(
      std::rename(fresh.c_str(), whole.c_str()) == 0, "[train] ", whole,
      " can't be written: check train.out and the disk");
}

}  // namespace sherd
