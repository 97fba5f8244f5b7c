// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "sherd/plan/program.h"

namespace sherd::testing {

struct ExampleProgram {
  std::string name;
  Program program;
};

/// Small programs: every spreading over one and two axes, with every way in which units may nest,
/// repeat, stay gathered or be recomputed.
std::vector<ExampleProgram> example_programs();

}  // namespace sherd::testing
