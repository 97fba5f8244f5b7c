// SPDX-License-Identifier: Apache-2.0
#include "exit_code.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "configuration/configuration.h"
#include "local_ranks.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::app {
namespace {

/// Prints an error, each line with the rank in front.
void print(const std::string& text) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) all += rank_text() + line + "\n";
  std::cerr << all << std::flush;
}

/// Returns the error's text, with the C++ frames of where it was thrown if SHERD_BACKTRACE=1.
std::string text_of(const c10::Error& error) {
  const auto* wanted = std::getenv("SHERD_BACKTRACE");
  const bool frames = wanted && std::string(wanted) == "1";
  return frames ? error.what() : error.what_without_backtrace();
}

}  // namespace

int exit_code_of(const std::function<int()>& command, int failed) {
  try {
    return command();
  } catch (const ConfigurationError& error) {
    if (is_first_rank()) std::cerr << error.what() << std::endl;
    return kRefused;
  } catch (const c10::ValueError& error) {
    print(text_of(error));
    return kRefused;
  } catch (const NotFiniteError& error) {
    print(text_of(error));
    return kNotFinite;
  } catch (const c10::Error& error) {
    print(text_of(error));
  } catch (const std::exception& error) {
    print(error.what());
  }
  return failed;
}

}  // namespace sherd::app
