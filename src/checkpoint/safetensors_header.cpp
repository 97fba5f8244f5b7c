// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.h"

#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/file_system.h"
#include "files/parse_json.h"

namespace sherd {
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kNumber = sizeof(uint64_t);
constexpr uint64_t kLargest = 100'000'000;  // what the format allows

struct NamedDtype {
  const char* name;
  c10::ScalarType dtype;
};
constexpr std::array kDtypes{
    NamedDtype{"F64", c10::kDouble},
    NamedDtype{"F32", c10::kFloat},
    NamedDtype{"F16", c10::kHalf},
    NamedDtype{"BF16", c10::kBFloat16},
    NamedDtype{"I64", c10::kLong},
    NamedDtype{"I32", c10::kInt},
    NamedDtype{"I16", c10::kShort},
    NamedDtype{"I8", c10::kChar},
    NamedDtype{"U8", c10::kByte},
    NamedDtype{"BOOL", c10::kBool},
    NamedDtype{"F8_E4M3", c10::kFloat8_e4m3fn},
    NamedDtype{"F8_E5M2", c10::kFloat8_e5m2},
};

/// What is wrong with a header is said with the file's name.
class Complaint {
 public:
  explicit Complaint(const std::string& path) : path_(path) {}
  template <class... Words>
  void require(bool fine, const Words&... words) const {
    TORCH_CHECK_VALUE(
        fine, "[safetensors] ", path_, ": ", words...,
        ": it is damaged, or no safetensors file; copy or download it again");
  }

 private:
  const std::string& path_;
};

c10::ScalarType dtype_of(const Complaint& complaint, const std::string& tensor, const Json& entry) {
  const auto found = entry.find("dtype");
  complaint.require(
      found != entry.end() && found->is_string(), "tensor '", tensor, "' has no dtype");
  const auto word = found->get<std::string>();
  for (const auto& [name, dtype] : kDtypes) {
    if (word == name) return dtype;
  }
  complaint.require(false, "tensor '", tensor, "' has the dtype '", word, "', which is not known");
  return {};
}

/// A whole number, 0 or more, that an int64_t holds.
std::optional<int64_t> count_in(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::vector<int64_t> counts_of(
    const Complaint& complaint, const std::string& tensor, const Json& entry, const char* key) {
  const auto found = entry.find(key);
  complaint.require(
      found != entry.end() && found->is_array(), "tensor '", tensor, "' has no list of ", key);
  std::vector<int64_t> result;
  for (const auto& one : *found) {
    const auto number = count_in(one);
    complaint.require(
        number.has_value(), "tensor '", tensor, "' has ", one.dump().substr(0, 40), " in its ",
        key);
    result.push_back(*number);
  }
  return result;
}

SafetensorsFile::Tensor tensor_of(
    const Complaint& complaint, const std::string& name, const Json& entry, int64_t data_bytes) {
  complaint.require(entry.is_object(), "the entry of tensor '", name, "' is not an object");
  SafetensorsFile::Tensor tensor;
  tensor.dtype = dtype_of(complaint, name, entry);
  tensor.shape = counts_of(complaint, name, entry, "shape");
  const auto offsets = counts_of(complaint, name, entry, "data_offsets");
  complaint.require(
      offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= data_bytes, "tensor '", name,
      "' does not lie within the file's ", data_bytes, " bytes of data");
  tensor.begin = offsets[0];
  tensor.bytes = offsets[1] - offsets[0];
  // Shapes beyond the file would overflow before they could be compared.
  auto bytes = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  if (empty) bytes = 0;
  for (const int64_t size : tensor.shape) {
    if (empty) break;
    complaint.require(
        size <= data_bytes / bytes, "tensor '", name, "' has a shape larger than the file");
    bytes *= size;
  }
  complaint.require(
      bytes == tensor.bytes, "tensor '", name, "' has ", tensor.bytes,
      " bytes where its shape needs ", bytes);
  return tensor;
}

/// The bytes of the data belong to one tensor each.
void check_places(
    const Complaint& complaint,
    const std::map<std::string, SafetensorsFile::Tensor>& tensors,
    int64_t data_bytes) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const auto& [name, tensor] : tensors) {
    places.emplace_back(tensor.begin, tensor.begin + tensor.bytes);
  }
  std::sort(places.begin(), places.end());
  int64_t end = 0;
  for (const auto& [from, to] : places) {
    complaint.require(
        from == end, "byte ", std::min(from, end), " of the data belongs to ",
        from < end ? "two tensors" : "no tensor");
    end = to;
  }
  complaint.require(
      end == data_bytes, "its data has ", data_bytes, " bytes, of which the tensors take ", end);
}

}  // namespace

SafetensorsHeader parse_safetensors(const std::string& path, std::span<const unsigned char> file) {
  const Complaint complaint(path);
  complaint.require(file.size() >= kNumber, "it has ", file.size(), " bytes");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kNumber);
  complaint.require(
      length <= kLargest && length <= file.size() - kNumber, "its header should have ", length,
      " bytes, and the file has ", file.size());
  const auto* begin = reinterpret_cast<const char*>(file.data()) + kNumber;
  file_counts().bytes_read += static_cast<int64_t>(kNumber + length);
  return parse_safetensors_header(path, {begin, length}, file.size());
}

SafetensorsHeader parse_safetensors_header(
    const std::string& path, std::string_view text, size_t file_bytes) {
  const Complaint complaint(path);
  complaint.require(
      file_bytes >= kNumber + text.size(), "its header should have ", text.size(),
      " bytes, and the file has ", file_bytes);
  const auto parsed = parse_json<Json>(text, {.levels = 8});
  using Problem = ParsedJson<Json>::Problem;
  complaint.require(
      parsed.problem != Problem::not_json, "its header is not JSON (", parsed.parser_message, ")");
  complaint.require(parsed.problem == Problem::none, "its header is nested too deeply");
  const auto& json = parsed.value;
  complaint.require(json.is_object(), "its header is not a JSON object");
  complaint.require(
      !parsed.repeated_key, "there are two tensors '", parsed.repeated_key.value_or(""), "'");
  SafetensorsHeader header;
  header.size = kNumber + text.size();
  const auto data_bytes = static_cast<int64_t>(file_bytes - header.size);
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      complaint.require(entry.is_object(), "its metadata is not an object");
      for (const auto& [key, value] : entry.items()) {
        complaint.require(value.is_string(), "its metadata '", key, "' is not a string");
        header.metadata[key] = value.get<std::string>();
      }
    } else {
      header.tensors[name] = tensor_of(complaint, name, entry, data_bytes);
    }
  }
  check_places(complaint, header.tensors, data_bytes);
  return header;
}

std::string safetensors_header(
    const std::vector<std::pair<std::string, SafetensorsFile::Tensor>>& tensors,
    const std::map<std::string, std::string>& metadata) {
  auto json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  for (const auto& [name, tensor] : tensors) {
    const auto* known = std::find_if(
        kDtypes.begin(), kDtypes.end(),
        [dtype = tensor.dtype](const NamedDtype& one) { return one.dtype == dtype; });
    TORCH_CHECK_VALUE(
        known != kDtypes.end(), "[safetensors] tensor '", name, "' has the dtype ", tensor.dtype,
        ", which the format has no name for");
    json[name] = {
        {"dtype", known->name},
        {"shape", tensor.shape},
        {"data_offsets", {tensor.begin, tensor.begin + tensor.bytes}}};
  }
  auto text = json.dump();
  text.append((kNumber - text.size() % kNumber) % kNumber, ' ');
  std::string result(kNumber, '\0');
  const uint64_t length = text.size();
  std::memcpy(result.data(), &length, kNumber);
  return result + text;
}

}  // namespace sherd
