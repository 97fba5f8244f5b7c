// SPDX-License-Identifier: Apache-2.0
// Feeds seeded random bytes to a fuzz target, for compilers without libFuzzer: random_driver
// [ROUNDS].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20000;
  std::mt19937_64 random(7);
  for (int round = 0; round < rounds; ++round) {
    std::vector<uint8_t> bytes(random() % 200);
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%d inputs\n", rounds);
  return 0;
}
