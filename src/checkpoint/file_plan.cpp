// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file_plan.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdio>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/sealed_json.h"

namespace sherd {
namespace {

int64_t bytes_of(const PlannedTensor& tensor) {
  return c10::multiply_integers(tensor.shape) *
         static_cast<int64_t>(c10::elementSize(tensor.dtype));
}

std::string file_name(Set set, size_t number, size_t count) {
  std::array<char, 64> text{};
  std::snprintf(
      text.data(), text.size(), "%s-%05zu-of-%05zu.safetensors", to_text(set), number + 1, count);
  return text.data();
}

}  // namespace

const char* to_text(Set set) {
  switch (set) {
    case Set::model: return "model";
    case Set::main: return "main";
    case Set::first_moment: return "first_moment";
    case Set::second_moment: return "second_moment";
  }
  return "?";
}

void FilePlan::add(
    Set set, const std::string& name, c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  const auto [found, fresh] = tensors_[set].try_emplace(name, PlannedTensor{dtype, shape});
  if (fresh) order_[set].push_back(name);
  TORCH_CHECK_VALUE(
      found->second.dtype == dtype && found->second.shape == shape, "[checkpoint] tensor '", name,
      "' is that of two parameters, which give it different shapes or dtypes");
}

void FilePlan::place(int64_t most) {
  for (const Set set : kSets) {
    std::vector<std::vector<std::string>> files;
    int64_t bytes = 0;
    for (const auto& name : order_[set]) {
      const int64_t size = bytes_of(tensors_[set].at(name));
      if (files.empty() || bytes + size > most) {
        files.emplace_back();
        bytes = 0;
      }
      files.back().push_back(name);
      bytes += size;
    }
    for (size_t number = 0; number < files.size(); ++number) {
      std::vector<std::pair<std::string, SafetensorsFile::Tensor>> entries;
      int64_t begin = 0;
      for (const auto& name : files[number]) {
        const auto& tensor = tensors_[set].at(name);
        entries.push_back({name, {tensor.dtype, tensor.shape, begin, bytes_of(tensor)}});
        begin += bytes_of(tensor);
      }
      auto header = safetensors_header(entries, {{"format", "pt"}});
      for (const auto& [name, entry] : entries) {
        auto& tensor = tensors_[set].at(name);
        tensor.file = files_.size();
        tensor.offset = std::ssize(header) + entry.begin;
      }
      const int64_t size = std::ssize(header) + begin;
      files_.push_back({file_name(set, number, files.size()), std::move(header), size});
    }
  }
}

std::string FilePlan::index() const {
  Json map = Json::object();
  int64_t bytes = 0;
  for (const auto& name : order_[Set::model]) {
    const auto& tensor = tensors_[Set::model].at(name);
    map[name] = files_[tensor.file].name;
    bytes += bytes_of(tensor);
  }
  return Json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(1) + "\n";
}

}  // namespace sherd
