// SPDX-License-Identifier: Apache-2.0
// Any bytes are a list of shapes; whatever layout they get must keep its promises.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "plan/layout_check.h"
#include "sherd/plan/layout.h"

namespace {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  /// The next `count` bytes as a number; 0 when there are none left.
  int64_t number(int count) {
    int64_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | (empty() ? 0 : data_[at_++]);
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

sherd::Granule granule(Bytes& bytes) {
  switch (bytes.number(1) % 4) {
    case 0: return sherd::Granule::element();
    case 1: return sherd::Granule::rows(bytes.number(1));
    case 2: return sherd::Granule::block(bytes.number(2));
    default: return sherd::Granule::whole();
  }
}

/// Mostly small dims, some of any size, negative ones among them.
int64_t dim(Bytes& bytes) {
  const int64_t kind = bytes.number(1);
  if (kind < 200) return kind;
  if (kind < 250) return bytes.number(3);
  return bytes.number(8);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  sherd::LayoutOptions options;
  options.shards = bytes.number(1) < 128 ? bytes.number(1) : bytes.number(3);
  options.element_size = int64_t{1} << bytes.number(1) % 6;
  std::vector<sherd::ParameterSpec> specs;
  while (!bytes.empty() && specs.size() < 64) {
    sherd::ParameterSpec spec{"p" + std::to_string(specs.size()), {}, granule(bytes)};
    for (int64_t dims = bytes.number(1) % 4; dims > 0; --dims) spec.shape.push_back(dim(bytes));
    specs.push_back(std::move(spec));
  }
  try {
    const auto layout = sherd::Layout::build(specs, options);
    const auto broken = sherd::testing::LayoutCheck(layout).run(size);
    if (!broken.empty()) {
      std::fprintf(stderr, "%s\n", broken.c_str());
      std::abort();
    }
  } catch (const std::invalid_argument&) {
    // Refused in words: as good an answer.
  }
  return 0;
}
