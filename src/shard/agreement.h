// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/comm/world.h"

namespace sherd {

/// What every rank of a communicator says. Blocks.
std::vector<std::string> exchange(
    Communicator& communicator, c10::Device device, const std::string& text);
/// Throws on all ranks, naming two sides, unless all say the same of what they do. Blocks.
void require_same(
    Communicator& communicator, c10::Device device, const char* what, const std::string& text);

/// What ranks tell each other on the side, on a communicator of their own: a small record at the
/// start of each pass that communicates, and whenever something unforeseen happens. Ranks whose
/// records differ learn it all at once, exchange what they know in words, and throw an error that
/// names both sides.
class Agreement {
 public:
  enum class Kind : int64_t { pass, order, unforeseen, recovery, report };
  struct Record {
    Kind kind{};
    int64_t number = 0;  ///< of the step, or of collectives so far
    int64_t hash = 0;    ///< of what must be equal
    int64_t detail = 0;  ///< which pass it is; of an order, whether the rank has no data
    int64_t news = 0;    ///< whether the rank has something to tell; the others' may differ
    bool agrees_with(const Record& other) const;
  };
  /// What a rank says of itself where records differ: a line for the kind, then facts, one a line.
  using Words = std::function<std::string()>;

  /// Collective.
  explicit Agreement(const World& world);

  /// Sends this rank's record; one at a time.
  void start(const Record& record, Words words);
  /// Throws if the records are there and differ. Without `block` it returns at once if they are
  /// not; with it, it waits, at most `limit` if one is given.
  void check(bool block, std::optional<std::chrono::milliseconds> limit = {});
  /// On the device.
  int64_t bytes() const { return static_cast<int64_t>(mine_.nbytes() + all_.nbytes()); }
  bool is_open() const { return open_; }
  /// Whether a rank had news in a record that was checked since last asked. All ranks that have
  /// checked the same records get the same answer.
  bool take_news() { return std::exchange(news_, false); }

  /// Everybody's order of units: that of the ranks with data, which must be the same. Blocks.
  std::string agree_on_order(const std::string& order, bool idle);
  /// What every rank says. Blocks.
  std::vector<std::string> exchange(const std::string& text);

 private:
  bool arrived();
  void wait(std::optional<std::chrono::milliseconds> limit);
  std::vector<Record> records() const;
  [[noreturn]] void refuse(const std::vector<Record>& all);

  World world_;
  Communicator& communicator_;
  at::Tensor mine_;  // on the device, and beside it where the host can read and write
  at::Tensor all_;
  at::Tensor host_mine_;
  at::Tensor host_all_;
  Communicator::OnStream stream_;
  Work work_;
  Record record_;
  Words words_;
  bool open_ = false;
  bool news_ = false;
};

}  // namespace sherd
