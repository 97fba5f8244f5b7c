// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sherd {

/// The kinds of tensors that a checkpoint has for a parameter. Each kind is in files of its own,
/// under the same tensor names.
enum class Set : uint8_t {
  model,          ///< as others read it
  main,           ///< the main weight, where it has another dtype than the model's
  first_moment,   ///< AdamW's first moment
  second_moment,  ///< AdamW's second moment
};
constexpr std::array kSets{Set::model, Set::main, Set::first_moment, Set::second_moment};
const char* to_text(Set set);

template <class T>
struct PerSet {
  std::array<T, kSets.size()> values{};
  T& operator[](Set set) { return values[static_cast<size_t>(set)]; }
  const T& operator[](Set set) const { return values[static_cast<size_t>(set)]; }
};

struct PlannedTensor {
  c10::ScalarType dtype{};
  std::vector<int64_t> shape;
  size_t file = 0;
  int64_t offset = 0;  ///< offset of its first byte in the file
};

struct PlannedFile {
  std::string name;
  std::string header;
  int64_t bytes = 0;  ///< size, header included
};

/// The file and offset of each tensor of a checkpoint.
class FilePlan {
 public:
  /// Adds a tensor to a set; files keep the order of the calls. A second tensor of the same name is
  /// ignored.
  void add(
      Set set, const std::string& name, c10::ScalarType dtype, const std::vector<int64_t>& shape);
  /// Assigns all tensors to files of at most about `most` bytes each.
  void place(int64_t most);

  const std::vector<PlannedFile>& files() const { return files_; }
  const std::map<std::string, PlannedTensor>& tensors(Set set) const { return tensors_[set]; }
  /// Returns Hugging Face's index of the model files, as JSON.
  std::string index() const;

 private:
  PerSet<std::vector<std::string>> order_;
  PerSet<std::map<std::string, PlannedTensor>> tensors_;
  std::vector<PlannedFile> files_;
};

}  // namespace sherd
