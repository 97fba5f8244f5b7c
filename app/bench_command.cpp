// SPDX-License-Identifier: Apache-2.0
#include "bench_command.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "at_least_one.h"
#include "child_process.h"
#include "configuration/network_file.h"
#include "files/byte_text.h"
#include "files/format_text.h"
#include "tools.h"
#include "write_file.h"

namespace sherd::app {
namespace {

using Json = nlohmann::ordered_json;

// ---- processes ---------------------------------------------------------------------------------
/// Runs a program whose results come in a file and waits; nothing where it fails. What it says goes
/// where progress goes.
std::optional<Json> result_of(std::vector<std::string> words, const char* option_of_file) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("sherd-bench-" + std::to_string(getpid()) + ".json");
  words.insert(words.end(), {option_of_file, file.string()});
  const int code = run_program(words, Output::standard_error);
  auto json = Json::parse(std::ifstream(file), nullptr, /*allow_exceptions=*/false);
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  if (code != 0 || !json.is_object()) return std::nullopt;
  return json;
}

/// Returns whether the variant's peer has Mamba-2 layers.
bool peer_scans(const BenchVariant& variant) {
  return variant.peer.front() == "fsdp2_hybrid.py";
}

// ---- what is printed ---------------------------------------------------------------------------
/// One value in a format; nothing where nobody measured it.
std::string shown(const Json& json, const char* key, const char* how) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return "";
  return format_text(how, found->get<double>());
}

std::string bytes_shown(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return "";
  return byte_text(found->get<int64_t>());
}

/// Of a step: what computing is measured by, or how many there are.
std::string speed(const Json& json) {
  const auto tflops = shown(json, "tflops", "%.4g TFLOP/s");
  return tflops.empty() ? format_text("%.4g steps/s", 1 / json["seconds"].get<double>()) : tflops;
}

std::string share_of_limit(const Json& json) {
  const auto found = json.find("share_of_limit");
  return found->is_null() ? "" : format_text("%.1f %%", 100 * found->get<double>());
}

/// The host's part of a step.
std::string host_share(const Json& json) {
  const auto found = json.find("host_seconds");
  if (found->is_null()) return "";
  return format_text("%.1f %%", 100 * found->get<double>() / json["seconds"].get<double>());
}

std::string last_step(const Json& json) {
  const auto& step = json["steps"].back();
  return shown(step, "loss", "%.4g") + ", " + shown(step, "gradient_norm", "%.4g");
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const auto& word : words) {
    if (!word.empty()) text += (text.empty() ? "" : between) + word;
  }
  return text;
}

/// A pair that is known whole or not at all.
std::string pair_of(const std::string& one, const char* between, const std::string& other) {
  return one.empty() || other.empty() ? "" : one + between + other;
}

/// One variant for people.
std::string line_of(const Json& one) {
  const auto& memory = one["memory"];
  const auto power = joined(
      {shown(one, "joules", "%.0f J"), shown(one, "watts", "%.0f W"),
       shown(one, "sm_mhz", "%.0f MHz")},
      ", ");
  const auto planned =
      pair_of(bytes_shown(memory, "planned") + " planned", ", ", bytes_shown(memory, "measured"));
  const auto allocated =
      pair_of(bytes_shown(memory, "allocated"), " allocated, ", bytes_shown(memory, "reserved"));
  auto line = joined(
      {one["name"].get<std::string>() + ": " + speed(one),
       pair_of(share_of_limit(one), " of ", shown(one, "limit_tflops", "%.4g")),
       shown(one, "seconds", "%.4g s a step"), pair_of("host ", "", host_share(one)), power,
       pair_of(planned, " ", "measured"), pair_of(allocated, " ", "reserved"),
       "loss and gradient norm at the end " + last_step(one)},
      "; ");
  const auto peer = one.find("peer");
  if (peer == one.end()) return line + "\n";
  return line + "\n  " +
         joined(
             {"FSDP2: " + speed(*peer), shown(*peer, "seconds", "%.4g s a step"),
              joined(
                  {shown(*peer, "joules", "%.0f J"), shown(*peer, "watts", "%.0f W"),
                   shown(*peer, "sm_mhz", "%.0f MHz")},
                  ", "),
              pair_of(
                  shown(*peer, "allocated_gib", "%.1f GiB allocated"), ", ",
                  shown(*peer, "reserved_gib", "%.1f GiB reserved")),
              shown(one, "times_the_peer", "Sherd is %.3f times as fast")},
             "; ") +
         "\n";
}

struct Column {
  std::string title;
  std::vector<std::string> cells;
};

std::vector<Column> columns_of(const Json& variants) {
  std::vector<Column> columns;
  const auto add = [&](const char* title, auto cell_of) {
    Column column{title, {}};
    for (const auto& one : variants) column.cells.push_back(cell_of(one, one["memory"]));
    const auto& cells = column.cells;
    const bool known = std::any_of(
        cells.begin(), cells.end(), [](const std::string& cell) { return !cell.empty(); });
    if (known) columns.push_back(std::move(column));
  };
  const auto peer_of = [](const Json& one) { return one.value("peer", Json::object()); };
  add("variant", [](const Json& one, const Json&) {
    return "`" + one["name"].get<std::string>() + "`: " + one["about"].get<std::string>();
  });
  add("speed", [](const Json& one, const Json&) { return speed(one); });
  add("of the limit", [](const Json& one, const Json&) { return share_of_limit(one); });
  add("step, s", [](const Json& one, const Json&) { return shown(one, "seconds", "%.4g"); });
  add("host", [](const Json& one, const Json&) { return host_share(one); });
  add("J a step", [](const Json& one, const Json&) { return shown(one, "joules", "%.0f"); });
  add("W", [](const Json& one, const Json&) { return shown(one, "watts", "%.0f"); });
  add("MHz", [](const Json& one, const Json&) { return shown(one, "sm_mhz", "%.0f"); });
  add("memory planned / measured", [](const Json&, const Json& memory) {
    return pair_of(bytes_shown(memory, "planned"), " / ", bytes_shown(memory, "measured"));
  });
  add("allocated / reserved", [](const Json&, const Json& memory) {
    return pair_of(bytes_shown(memory, "allocated"), " / ", bytes_shown(memory, "reserved"));
  });
  add("loss, gradient norm", [](const Json& one, const Json&) { return last_step(one); });
  add("FSDP2", [&](const Json& one, const Json&) {
    const auto peer = peer_of(one);
    return peer.empty() ? "" : speed(peer);
  });
  add("its GiB", [&](const Json& one, const Json&) {
    return pair_of(
        shown(peer_of(one), "allocated_gib", "%.1f"), " / ",
        shown(peer_of(one), "reserved_gib", "%.1f"));
  });
  add("its J", [&](const Json& one, const Json&) { return shown(peer_of(one), "joules", "%.0f"); });
  add("times as fast",
      [](const Json& one, const Json&) { return shown(one, "times_the_peer", "%.3f"); });
  return columns;
}

/// Markdown, with what made it.
std::string table_of(const Json& all) {
  const auto& variants = all["variants"];
  if (variants.empty()) return "";
  const auto columns = columns_of(variants);
  std::string text;
  const auto row = [&](auto cell_of) {
    for (const auto& column : columns) text += "| " + cell_of(column) + " ";
    text += "|\n";
  };
  row([](const Column& column) { return column.title; });
  row([](const Column&) { return std::string("---"); });
  for (size_t i = 0; i < variants.size(); ++i) {
    row([&](const Column& column) { return column.cells[i]; });
  }
  const auto& first = variants[0];
  const auto limit = shown(first, "limit_tflops", ", whose limit is %.4g TFLOP/s");
  return "On one " + first["device"].get<std::string>() + limit + ", by `" +
         all["command"].get<std::string>() + "`:\n\n" + text;
}

}  // namespace

// ---- the command -------------------------------------------------------------------------------
BenchCommand::BenchCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "bench", "Measure speed, energy and memory of the reference workloads on this device")) {
  std::string names;
  for (const auto& variant : bench_variants()) {
    names += "\n" + variant.name + ": " + variant.about;
  }
  command_->add_option("--only", only_, "Variants to run; default: all:" + names)->delimiter(',');
  command_->add_flag("--quick", quick_, "Use tiny models and short sequences, as a quick check");
  command_->add_option("--device", device_, "auto: cuda if there is a GPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command_->add_option(
      "--network", network_,
      "Network description (networks/, sherd network); default: communication takes no time");
  command_->add_option("--steps", steps_, "Number of measured steps")->check(at_least_one());
  command_
      ->add_option(
          "--load", load_,
          "Seconds of steps before the measurement, until the clock rate is stable; default: 10 on "
          "a GPU, 0 on CPU")
      ->check(CLI::NonNegativeNumber);
  command_->add_flag(
      "--peers", peers_,
      "Also run PyTorch's FSDP2 on the same workloads: the scripts in bench/peers");
  command_
      ->add_option(
          "--mamba-ssm", mamba_ssm_,
          "Folder with mamba_ssm's source for the peer of hybrid variants, which is not run "
          "without it; bench/peers/fsdp2_hybrid.py --help describes how to get it")
      ->needs("--peers")
      ->check(CLI::ExistingDirectory)
      ->type_name("DIR");
  command_->add_option("--json", json_, "Write everything as JSON")->type_name("FILE");
  command_->add_flag("--table", table_, "Print a Markdown table, and the command that produced it");
  command_->add_flag("--here", here_, "Run one variant in this process and write it to --json")
      ->group("");
}

std::vector<BenchVariant> BenchCommand::chosen() const {
  if (only_.empty()) return bench_variants();
  std::vector<BenchVariant> result;
  for (const auto& name : only_) result.push_back(bench_variant(name));
  return result;
}

void BenchCommand::run_here() const {
  TORCH_CHECK_VALUE(
      only_.size() == 1 && !json_.empty(),
      "[bench] --here runs one variant: --only NAME --json FILE");
  BenchOptions options{.quick = quick_, .device = device_, .steps = steps_, .load = load_};
  if (!network_.empty()) options.network = read_network(network_);
  options.say = [](const std::string& line) { std::cerr << line << std::endl; };
  write_file(json_, to_json(bench(only_.front(), options)));
}

std::vector<std::string> BenchCommand::words_for_sherd(const BenchVariant& variant) const {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words{program,      "bench",    "--here", "--only",
                                 variant.name, "--device", device_};
  words.insert(words.end(), {"--steps", std::to_string(steps_)});
  if (load_) words.insert(words.end(), {"--load", format_text("%g", *load_)});
  if (!network_.empty()) words.insert(words.end(), {"--network", network_});
  if (quick_) words.emplace_back("--quick");
  return words;
}

/// As Sherd was run.
std::vector<std::string> BenchCommand::words_for_peer(
    const BenchVariant& variant, double load) const {
  std::vector<std::string> words{python(), peer_script(variant.peer.front()), "--device", device_};
  std::copy_if(
      variant.peer.begin() + 1, variant.peer.end(), std::back_inserter(words),
      [&](const std::string& word) { return !quick_ || word != "--compile"; });  // takes minutes
  if (peer_scans(variant) && !mamba_ssm_.empty())
    words.insert(words.end(), {"--mamba-ssm", mamba_ssm_});
  words.insert(words.end(), {"--steps", std::to_string(steps_)});
  words.insert(words.end(), {"--seconds-of-load", format_text("%g", load)});
  if (quick_) words.emplace_back("--quick");
  return words;
}

/// Returns whether to run the variant's peer. One that scans needs mamba_ssm, but for tiny models.
bool BenchCommand::runs_peer(const BenchVariant& variant) const {
  if (!peers_ || variant.peer.empty()) return false;
  if (quick_ || !mamba_ssm_.empty() || !peer_scans(variant)) return true;
  std::cerr << variant.name << ": FSDP2 is not run: it needs mamba_ssm's scan, --mamba-ssm DIR"
            << std::endl;
  return false;
}

std::string BenchCommand::whole_command() const {
  std::vector<std::string> words{"./sherd", "bench"};
  std::string names;
  for (const auto& name : only_) names += (names.empty() ? "" : ",") + name;
  if (!names.empty()) words.insert(words.end(), {"--only", names});
  if (quick_) words.emplace_back("--quick");
  if (device_ != "auto") words.insert(words.end(), {"--device", device_});
  if (!network_.empty()) words.insert(words.end(), {"--network", network_});
  if (steps_ != 10) words.insert(words.end(), {"--steps", std::to_string(steps_)});
  if (load_) words.insert(words.end(), {"--load", format_text("%g", *load_)});
  if (peers_) words.emplace_back("--peers");
  if (!mamba_ssm_.empty()) words.insert(words.end(), {"--mamba-ssm", mamba_ssm_});
  if (table_) words.emplace_back("--table");
  return joined(words, " ");
}

/// Each variant in a process of its own: its memory is then all its own, the device is free for the
/// peer, and one that fails does not take the others with it.
int BenchCommand::run_each() const {
  Json all{{"command", whole_command()}, {"quick", quick_}, {"variants", Json::array()}};
  int code = 0;
  for (const auto& variant : chosen()) {
    auto result = result_of(words_for_sherd(variant), "--json");
    if (!result) {
      std::cerr << variant.name << ": failed; see above" << std::endl;
      code = 1;
      continue;
    }
    if (runs_peer(variant)) {
      const auto load = (*result)["seconds_of_load"].get<double>();
      if (const auto peer = result_of(words_for_peer(variant, load), "--out")) {
        (*result)["peer"] = *peer;
        (*result)["times_the_peer"] =
            (*peer)["seconds"].get<double>() / (*result)["seconds"].get<double>();
      } else {
        std::cerr << variant.name << ": FSDP2 failed; see above" << std::endl;
        code = 1;
      }
    }
    std::cout << line_of(*result) << std::flush;
    all["variants"].push_back(std::move(*result));
    if (!json_.empty()) write_file(json_, all.dump(1) + "\n");  // now: a later one may be cut short
  }
  if (table_) std::cout << '\n' << table_of(all);
  return code;
}

int BenchCommand::run() const {
  if (!here_) return run_each();
  run_here();
  return 0;
}

}  // namespace sherd::app
