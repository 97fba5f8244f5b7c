// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace sherd {

/// While a unit needs its slot: a range of instructions of one section, both ends included.
struct Lifetime {
  int32_t unit = 0;
  int32_t section = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

/// A slot per unit (kNone: it has no lifetime), so that no two units whose lifetimes overlap share
/// one. Units choose in the order of their first lifetime, each the first slot that is free.
std::vector<int32_t> colour_slots(const std::vector<Lifetime>& lifetimes, int32_t units);

}  // namespace sherd
