// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace sherd {
namespace {

/// A number that looks random, of three others.
uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xC2B2AE3D27D4EB4Fu + c * 0x165667B19E3779F9u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

Sampler::Sampler(const Options& options) : options_(options) {
  TORCH_INTERNAL_ASSERT(options.samples > 0);
  per_step_ = options.batch * options.micro_batches * options.ranks;
}

int64_t Sampler::samples_from(int64_t position) const {
  return std::min(per_step_, options_.samples - position % options_.samples);
}

std::vector<int64_t> Sampler::samples(int64_t position, int64_t micro_batch, int64_t rank) const {
  const int64_t pass = position / options_.samples;
  const int64_t begin =
      position % options_.samples + (micro_batch * options_.ranks + rank) * options_.batch;
  const int64_t end = std::min(begin + options_.batch, options_.samples);
  std::vector<int64_t> result;
  for (int64_t place = begin; place < end; ++place) {
    result.push_back(options_.shuffle ? shuffled(pass, place) : place);
  }
  return result;
}

/// A permutation without a table: rounds that each add to one half of the bits a mix of the other
/// can be undone, so no two positions meet. What falls beyond the samples goes round again.
int64_t Sampler::shuffled(int64_t pass, int64_t position) const {
  int bits = 1;
  while (int64_t{1} << (2 * bits) < options_.samples) ++bits;
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  auto value = static_cast<uint64_t>(position);
  do {
    uint64_t left = value >> bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next =
          left ^ (mix(options_.seed, static_cast<uint64_t>(pass) * 8 + round, right) & mask);
      left = right;
      right = next;
    }
    value = left << bits | right;
  } while (value >= static_cast<uint64_t>(options_.samples));
  return static_cast<int64_t>(value);
}

}  // namespace sherd
