// SPDX-License-Identifier: Apache-2.0
#include "exit_code.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>

#include "configuration/configuration.h"
#include "local_ranks.h"
#include "sherd/shard/diagnostics.h"

namespace sherd::app {

int exit_code_of(const std::function<int()>& command, int failed) {
  const auto print = [](const char* text) { std::cerr << rank_text() << text << std::endl; };
  try {
    return command();
  } catch (const ConfigurationError& error) {
    if (is_first_rank()) std::cerr << error.what() << std::endl;
    return kRefused;
  } catch (const c10::ValueError& error) {
    print(error.what_without_backtrace());
    return kRefused;
  } catch (const NotFiniteError& error) {
    print(error.what_without_backtrace());
    return kNotFinite;
  } catch (const c10::Error& error) {
    print(error.what_without_backtrace());
  } catch (const std::exception& error) {
    print(error.what());
  }
  return failed;
}

}  // namespace sherd::app
