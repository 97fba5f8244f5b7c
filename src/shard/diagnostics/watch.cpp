// SPDX-License-Identifier: Apache-2.0
#include "shard/diagnostics/watch.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <sstream>

#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

constexpr int kMicroBatchBits = 20;
constexpr int64_t kBytes = sizeof(Watched);

const char* word(Fault fault) {
  switch (fault) {
    case Fault::nan: return "NaN";
    case Fault::infinite: return "infinite";
    case Fault::exploding: return "exploding";
    case Fault::none: break;
  }
  return "as it should be";
}

const Watched* watched_in(const at::Tensor& bytes) {
  return static_cast<const Watched*>(bytes.const_data_ptr());
}

Fault fault_in(int64_t finding) {
  return static_cast<Fault>(finding & 3);
}

int64_t step_in(int64_t finding) {
  return finding >> 2 >> kMicroBatchBits;
}

int64_t micro_batch_in(int64_t finding) {
  return finding >> 2 & ((1 << kMicroBatchBits) - 1);
}

}  // namespace

std::string Finding::text() const {
  auto result = c10::str(
      "the gradient of parameter '", parameter, "' is ", word(fault), " in micro-batch ",
      micro_batch, " of step ", step);
  return rank ? c10::str(result, " on rank ", *rank) : result;
}

/// Gradients that are not sharded wait for the last micro-batch to be reduced: until then this
/// rank's own are all there is to look at.
bool Watch::looks_at_local(bool sharded, bool last) const {
  return options_.before_reduction || (!sharded && !last);
}

Look Watch::look_at(const Moment& moment) const {
  return {
      moment.step << kMicroBatchBits | moment.micro_batch, options_.exploding, moment.last,
      overflows_};
}

void Watch::prepare(const std::vector<Unit*>& units, int64_t micro_batches) {
  entries_.clear();
  std::vector<std::string> names;
  const auto& root = *units.back();
  for (const auto* unit : units) {
    auto& entries = entries_.emplace_back();
    for (const auto& group : unit->groups()) {
      auto& entry = entries.emplace_back();
      if (!group->traits().trainable || !options_.enabled) continue;
      entry.first = std::ssize(names);
      entry.count = std::ssize(group->storage().gradient_pieces());
      entry.sharded = group->layout().shards_gradients();
      entry.reduced = Measurement(group->storage().accumulated_pieces());
      if (looks_at_local(entry.sharded, micro_batches == 1)) {
        entry.local = Measurement(group->inbox().targets());
      }
      for (size_t i = 0; i < group->size(); ++i) {
        names.push_back(unit == &root ? group->name(i) : unit->name() + "." + group->name(i));
      }
    }
  }
  if (names == names_) return;
  names_ = std::move(names);
  const auto device = root.mesh().world().device();
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
  const int64_t looks = 2 * std::ssize(names_);
  watched_ = at::zeros({looks * kBytes}, bytes);
  sums_ = at::zeros({looks}, bytes.dtype(at::kDouble));
  const bool cuda = device.is_cuda();
  host_ = at::zeros({looks * kBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(cuda));
  told_.reset();
  if (cuda) told_.emplace(device.type());
  listening_ = false;
}

int64_t Watch::bytes() const {
  int64_t sum = 0;
  for (const auto* tensor : {&watched_, &sums_}) {
    if (tensor->defined()) sum += static_cast<int64_t>(tensor->nbytes());
  }
  for (const auto& entries : entries_) {
    for (const auto& entry : entries) sum += entry.local.bytes() + entry.reduced.bytes();
  }
  return sum;
}

Watch::Entry& Watch::entry(int32_t unit, int32_t group) {
  return entries_[static_cast<size_t>(unit)][static_cast<size_t>(group)];
}

void Watch::look(const Measurement& measurement, int64_t first, const Look& look) {
  if (watched_.is_meta()) return;
  auto* watched = static_cast<Watched*>(watched_.mutable_data_ptr());
  measurement.run(sums_.mutable_data_ptr<double>() + first, watched + first, look);
}

void Watch::look_before_reduction(int32_t unit, int32_t group, const Moment& moment) {
  const auto& [local, reduced, first, count, sharded] = entry(unit, group);
  if (count == 0 || !looks_at_local(sharded, moment.last)) return;
  look(local, first, look_at(moment));
}

void Watch::look_after_reduction(int32_t unit, int32_t group, const Moment& moment) {
  const auto& [local, reduced, first, count, sharded] = entry(unit, group);
  if (count == 0) return;
  look(reduced, std::ssize(names_) + first, look_at(moment));
}

void Watch::copy_to_host() {
  if (names_.empty() || watched_.is_meta()) return;
  if (told_ && listening_ && !told_->query()) return;  // what is found stays until somebody listens
  host_.copy_(watched_, /*non_blocking=*/true);
  if (told_) {
    told_->record(c10::impl::VirtualGuardImpl(told_->device_type()).getStream(watched_.device()));
  }
  listening_ = true;
}

bool Watch::has_findings() {
  if (!listening_ || (told_ && !told_->query())) return false;
  listening_ = false;
  const auto* watched = watched_in(host_);
  return std::any_of(watched, watched + 2 * std::ssize(names_), [&](const Watched& one) {
    const auto fault = fault_in(one.finding);
    return fault == Fault::exploding || (!overflows_ && fault != Fault::none);
  });
}

std::string Watch::take(int64_t rank) {
  if (names_.empty()) return {};
  const auto host = watched_.cpu();
  const auto* watched = watched_in(host);
  std::ostringstream out;
  const int64_t parameters = std::ssize(names_);
  for (int64_t i = 0; i < 2 * parameters; ++i) {
    const int64_t finding = watched[i].finding;
    if (finding == 0) continue;
    out << step_in(finding) << ' ' << micro_batch_in(finding) << ' '
        << (i < parameters ? rank : int64_t{kNone}) << ' ' << static_cast<int>(fault_in(finding))
        << ' ' << names_[static_cast<size_t>(i % parameters)] << '\n';
    watched_.narrow(0, i * kBytes, sizeof(finding)).zero_();
  }
  listening_ = false;
  return out.str();
}

void Watch::forget(int64_t step) {
  if (names_.empty()) return;
  const auto host = watched_.cpu();
  const auto* watched = watched_in(host);
  for (int64_t i = 0; i < 2 * std::ssize(names_); ++i) {
    if (watched[i].finding == 0 || step_in(watched[i].finding) != step) continue;
    watched_.narrow(0, i * kBytes, sizeof(watched[i].finding)).zero_();
  }
}

std::vector<Finding> Watch::merge(const std::vector<Statement>& ranks) {
  std::vector<Finding> all;
  for (const auto& said : ranks) {
    std::istringstream in(said.text);
    Finding one;
    int64_t rank = kNone;
    int fault = 0;
    while (in >> one.step >> one.micro_batch >> rank >> fault && in.get() &&
           std::getline(in, one.parameter)) {
      one.fault = static_cast<Fault>(fault);
      one.rank = rank == kNone ? std::nullopt : std::optional(rank);
      all.push_back(one);
    }
  }
  // At equal step and micro-batch, findings with a known rank come first.
  std::stable_sort(all.begin(), all.end(), [](const Finding& a, const Finding& b) {
    return std::tuple(a.step, a.micro_batch, !a.rank.has_value(), a.rank.value_or(0)) <
           std::tuple(b.step, b.micro_batch, !b.rank.has_value(), b.rank.value_or(0));
  });
  std::vector<Finding> result;
  for (const auto& one : all) {
    const bool known = std::any_of(result.begin(), result.end(), [&](const Finding& other) {
      const bool alike = (other.fault == Fault::exploding) == (one.fault == Fault::exploding);
      return alike && other.parameter == one.parameter && (!one.rank || other.rank == one.rank);
    });
    if (!known) result.push_back(one);
  }
  return result;
}

}  // namespace sherd
