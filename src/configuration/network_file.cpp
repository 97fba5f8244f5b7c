// SPDX-License-Identifier: Apache-2.0
#include "configuration/network_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "configuration/byte_size.h"
#include "configuration/configuration.h"
#include "configuration/to_toml.h"
#include "configuration/toml_table.h"
#include "files/nearest_word.h"

namespace sherd {
namespace {

struct Range {
  double least;
  double most;
  const char* unit;
};
// Wide, but a figure in microseconds or in GB/s lies outside.
constexpr Range kSeconds{0, 1, " seconds"};
constexpr Range kSpeed{1e6, 1e15, " bytes per second"};
constexpr Range kTflops{1e-3, 1e6, " TFLOP/s"};
constexpr int64_t kMostRanks = int64_t{1} << 24;

class NetworkReader {
 public:
  explicit NetworkReader(std::vector<std::string>& problems) : problems_(problems) {}

  void read(const TomlTable& table, NetworkFile& into) {
    refuse_unknown(table, "", {"name", "node", "overlaps", "inside", "between", "axes", "device"});
    if (const auto* value = value_of(table, "", "name")) {
      if (!value->string) {
        problem(*value, "name", "it must be a string in quotes");
      } else {
        into.name = *value->string;
      }
    }
    read_node(table, into.node);
    if (const auto* value = value_of(table, "", "overlaps")) {
      if (!value->boolean) {
        problem(*value, "overlaps", "it must be true or false");
      } else {
        into.overlaps = *value->boolean;
      }
    }
    // A link that is left out costs nothing, and so would every plan.
    const auto has_inside = read_link(table, "", "inside", into.inside);
    const auto has_between = read_link(table, "", "between", into.between);
    if (!has_inside && into.node != 1)
      missing(table, "inside", "a node of several ranks needs an inner link");
    if (!has_between && into.node != 0)
      missing(table, "between", "several nodes need an outer link");
    read_axes(table, into.axes);
    read_device(table, into.device);
  }

 private:
  void read_node(const TomlTable& table, int64_t& into) {
    const auto* value = value_of(table, "", "node");
    if (!value) return;
    if (!value->integer) {
      problem(*value, "node", "it must be a whole number");
    } else if (*value->integer < 0 || *value->integer > kMostRanks) {
      problem(*value, "node", "it must be at least 0 and at most " + std::to_string(kMostRanks));
    } else {
      into = *value->integer;
    }
  }

  /// Whether it is there.
  bool read_link(
      const TomlTable& table, const std::string& prefix, const std::string& name, Link& into) {
    const auto* section = section_of(table, prefix, name);
    if (!section) return table.value(name) != nullptr;  // then it is a problem already
    const auto inner = prefix + name + ".";
    refuse_unknown(*section, inner, {"latency", "bandwidth"});
    for (const auto& [key, range, number] :
         {std::tuple{"latency", kSeconds, &into.latency}, {"bandwidth", kSpeed, &into.bandwidth}}) {
      if (!read_number(*section, inner, key, range, *number)) {
        problems_.push_back(
            section->place() + ": " + inner + key + " is missing: write it in" + range.unit);
      }
    }
    return true;
  }

  void read_axes(const TomlTable& table, std::map<std::string, Link>& into) {
    const auto* section = section_of(table, "", "axes");
    if (!section) return;
    for (const auto& entry : section->entries()) {
      read_link(*section, "axes.", entry.name, into[entry.name]);
    }
  }

  void read_device(const TomlTable& table, DeviceSpeed& into) {
    const auto* section = section_of(table, "", "device");
    if (!section) return;
    refuse_unknown(*section, "device.", {"tflops", "tflops_fp8", "memory_bandwidth", "memory"});
    read_number(*section, "device.", "tflops", kTflops, into.tflops);
    read_number(*section, "device.", "tflops_fp8", kTflops, into.tflops_fp8);
    read_number(*section, "device.", "memory_bandwidth", kSpeed, into.memory_bandwidth);
    const auto* value = value_of(*section, "device.", "memory");
    if (!value) return;
    const auto bytes = value->string ? parse_bytes(*value->string) : value->integer;
    if (!bytes || *bytes <= 0) {
      problem(*value, "device.memory", "it must be a number of bytes, such as \"80GiB\"");
    } else {
      into.memory = *bytes;
    }
  }

  /// Whether the key is there.
  bool read_number(
      const TomlTable& table,
      const std::string& prefix,
      const std::string& name,
      const Range& range,
      double& into) {
    const auto* value = value_of(table, prefix, name);
    if (!value) return table.table(name) != nullptr;
    if (!value->real) {
      problem(*value, prefix + name, "it must be a number");
    } else if (!(*value->real >= range.least && *value->real <= range.most)) {
      problem(
          *value, prefix + name,
          "it must be at least " + number(range.least) + " and at most " + number(range.most) +
              range.unit);
    } else {
      into = *value->real;
    }
    return true;
  }

  const TomlValue* value_of(
      const TomlTable& table, const std::string& prefix, const std::string& name) {
    if (const auto* section = table.table(name)) {
      problems_.push_back(
          section->place() + ": " + prefix + name + " = {…}: it is a value, not a section");
    }
    return table.value(name);
  }

  const TomlTable* section_of(
      const TomlTable& table, const std::string& prefix, const std::string& name) {
    if (const auto* value = table.value(name)) {
      problem(
          *value, prefix + name,
          "it is a section: write [" + prefix + name + "] and its keys below");
    }
    return table.table(name);
  }

  void refuse_unknown(
      const TomlTable& table, const std::string& prefix, const std::vector<std::string>& known) {
    for (const auto& [name, place, text] : table.entries()) {
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const auto near = nearest_word(name, known);
      problems_.push_back(
          place + ": " + prefix + name + " = " + text + ": unknown key; " +
          (near ? "did you mean " + prefix + *near + "?" : "the keys are " + join(known, ", ")));
    }
  }

  void missing(const TomlTable& table, const std::string& name, const char* why) {
    problems_.push_back(
        table.place() + ": " + name + " is missing: " + why + ", so write [" + name +
        "] with latency and bandwidth");
  }
  void problem(const TomlValue& value, const std::string& name, const std::string& remedy) {
    problems_.push_back(value.place + ": " + name + " = " + value.text + ": " + remedy);
  }

  std::vector<std::string>& problems_;
};

std::string link_text(const std::string& section, const Link& link) {
  return "\n[" + section + "]\nlatency = " + to_toml(link.latency) +
         "\nbandwidth = " + to_toml(link.bandwidth) + "\n";
}

bool is_said(const Link& link) {
  return link.latency > 0 || link.bandwidth > 0;
}

/// A key, in quotes where it must be.
std::string key_text(const std::string& name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return plain ? name : quoted(name);
}

// Note [Which link an axis runs over]
// An axis of n ranks with a stride consists of lines of ranks. If every line stays within one node,
// it has the inner link; if no two ranks of a line share a node, it has the link between nodes. A
// line of several nodes with several ranks in each has hops of both kinds: NCCL opens a ring for
// each NIC, so what the NICs of a line's ranks in a node have together bounds it, or the inner link
// does; the larger latency counts. Where it is known to be otherwise, [axes.NAME] says so. A link
// has one latency per operation, although that of a ring grows with its ranks; a file gives it for
// the rings it was written for.

/// The most nodes that a line of the axis touches.
int64_t nodes_of(int64_t stride, int64_t size, int64_t node, int64_t ranks) {
  if (node == 0) return 1;
  int64_t most = 1;
  // After so many ranks everything repeats.
  const int64_t end = std::min(ranks, stride * size * node);
  for (int64_t first = 0; first < end; ++first) {
    if (first / stride % size != 0) continue;
    int64_t nodes = 1;
    for (int64_t i = 1; i < size; ++i) {
      const int64_t rank = first + i * stride;
      if (rank / node != (rank - stride) / node) ++nodes;
    }
    most = std::max(most, nodes);
  }
  return most;
}

/// A bandwidth of 0 is no limit.
double slower(double a, double b) {
  return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b);
}

Link link_of(const NetworkFile& file, int64_t stride, int64_t size, int64_t ranks) {
  const int64_t nodes = nodes_of(stride, size, file.node, ranks);
  if (nodes == 1) return file.inside;
  if (nodes == size) return file.between;
  return {
      .latency = std::max(file.inside.latency, file.between.latency),
      .bandwidth = slower(
          file.inside.bandwidth,
          static_cast<double>(size) / static_cast<double>(nodes) * file.between.bandwidth)};
}

}  // namespace

NetworkFile read_network(const std::string& path) {
  NetworkFile result;
  result.source = path;
  result.name = std::filesystem::path(path).stem().string();
  std::vector<std::string> problems;
  if (const auto table = read_toml_file(path, problems))
    NetworkReader(problems).read(*table, result);
  if (!problems.empty()) throw ConfigurationError(std::move(problems));
  return result;
}

std::string to_text(const NetworkFile& file) {
  auto text = "name = " + to_toml(file.name) + "\nnode = " + to_toml(file.node) +
              "\noverlaps = " + to_toml(file.overlaps) + "\n";
  if (is_said(file.inside)) text += link_text("inside", file.inside);
  if (is_said(file.between)) text += link_text("between", file.between);
  for (const auto& [axis, link] : file.axes) text += link_text("axes." + key_text(axis), link);
  const auto& device = file.device;
  const bool known = device.tflops > 0 || device.tflops_fp8 > 0 || device.memory_bandwidth > 0;
  if (known || device.memory > 0) text += "\n[device]\n";
  if (device.tflops > 0) text += "tflops = " + to_toml(device.tflops) + "\n";
  if (device.tflops_fp8 > 0) text += "tflops_fp8 = " + to_toml(device.tflops_fp8) + "\n";
  if (device.memory_bandwidth > 0) {
    text += "memory_bandwidth = " + to_toml(device.memory_bandwidth) + "\n";
  }
  if (device.memory > 0) text += "memory = " + quoted(exact_byte_text(device.memory)) + "\n";
  return text;
}

Network network_of(
    const NetworkFile& file, const std::vector<std::pair<std::string, int64_t>>& axes) {
  TORCH_CHECK_VALUE(
      file.node >= 0, "[network] ", file.name, ": node = ", file.node, ": it must be at least 0");
  int64_t ranks = 1;
  for (const auto& [name, size] : axes) {
    TORCH_CHECK_VALUE(
        size >= 1 && size <= kMostRanks / ranks, "[network] axis ", name, " of ", size,
        " ranks: each axis has at least 1, and all together at most ", kMostRanks);
    ranks *= size;
  }
  Network result;
  result.overlaps = file.overlaps;
  result.fallback = link_of(file, 1, ranks, ranks);
  int64_t stride = ranks;
  for (const auto& [name, size] : axes) {
    stride /= size;
    const bool is_new = result.axes.emplace(name, link_of(file, stride, size, ranks)).second;
    TORCH_CHECK_VALUE(is_new, "[network] two axes have the name ", name, ": use different names");
  }
  for (const auto& [name, link] : file.axes) result.axes[name] = link;
  return result;
}

}  // namespace sherd
