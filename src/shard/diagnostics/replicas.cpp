// SPDX-License-Identifier: Apache-2.0
#include "shard/diagnostics/replicas.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <map>

#include "files/crc32c.h"
#include "shard/runtime/runtime.h"

namespace sherd {
namespace {

uint64_t identity_of(
    const std::string& name,
    const char* weight,
    const GroupLayout& layout,
    size_t member,
    const Piece& piece) {
  const auto cut = layout.cut(member) ? to_text(*layout.cut(member)) : "";
  return c10::get_hash(name, std::string(weight), piece.begin, piece.length, cut);
}

/// Adds up the bits of a tensor as integers: a flipped one changes the sum.
at::Tensor sum_of_bits(const at::Tensor& elements) {
  const auto width = elements.element_size();
  const auto bits = elements.view(
      width == 8   ? at::kLong
      : width == 4 ? at::kInt
      : width == 2 ? at::kShort
                   : at::kByte);
  return at::sum(bits, at::kLong);
}

}  // namespace

std::vector<ReplicaItem> replica_items(const std::vector<Unit*>& units, bool refreshed) {
  std::vector<ReplicaItem> items;
  for (const auto* unit : units) {
    for (const auto& group : unit->groups()) {
      const auto& layout = group->layout();
      const auto& storage = group->storage();
      const auto& model = storage.model_weight().front();
      const auto add = [&](const char* weight, const at::Tensor& elements, Part part,
                           size_t member) {
        const auto name =
            unit == units.back() ? group->name(member) : unit->name() + "." + group->name(member);
        const auto piece = layout.flat().held_by(part, static_cast<int64_t>(member));
        items.push_back({name, weight, elements, identity_of(name, weight, layout, member, piece)});
      };
      for (size_t member = 0; member < group->size(); ++member) {
        add("main weight", storage.main_pieces()[member], layout.main_part(), member);
        const bool separate =
            !layout.shares_weight() || model.part.count != layout.main_part().count;
        if (!separate || (layout.needs_refresh() && !refreshed)) continue;
        add("model weight", layout.piece(model, model.part, member), model.part, member);
      }
    }
  }
  return items;
}

std::vector<int64_t> checksums(const std::vector<ReplicaItem>& items) {
  std::vector<int64_t> sums(items.size());
  if (items.empty()) return sums;
  if (items.front().elements.device().is_cpu()) {
    std::transform(items.begin(), items.end(), sums.begin(), [](const ReplicaItem& item) {
      return int64_t{crc32c(item.elements.const_data_ptr(), item.elements.nbytes())};
    });
    return sums;
  }
  std::vector<at::Tensor> each;
  for (const auto& item : items) each.push_back(sum_of_bits(item.elements));
  const auto all = at::stack(each).cpu();
  std::copy_n(all.const_data_ptr<int64_t>(), sums.size(), sums.begin());
  return sums;
}

std::vector<ReplicaDifference> compare_replicas(
    const std::vector<ReplicaItem>& items, const std::vector<int64_t>& numbers, int64_t ranks) {
  const auto number_of = [&](int64_t rank, size_t item, size_t which) {
    return numbers[(static_cast<size_t>(rank) * items.size() + item) * 2 + which];
  };
  std::vector<ReplicaDifference> differences;
  for (size_t item = 0; item < items.size(); ++item) {
    std::map<int64_t, std::map<int64_t, std::vector<int64_t>>> alike;  // by identity, by checksum
    for (int64_t rank = 0; rank < ranks; ++rank)
      alike[number_of(rank, item, 0)][number_of(rank, item, 1)].push_back(rank);
    for (const auto& [identity, by_sum] : alike) {
      if (by_sum.size() < 2) continue;
      const auto larger = [](const auto& one, const auto& other) {
        return one.second.size() < other.second.size();
      };
      const auto most = std::max_element(by_sum.begin(), by_sum.end(), larger);
      const bool known = std::count_if(by_sum.begin(), by_sum.end(), [&](const auto& one) {
                           return one.second.size() == most->second.size();
                         }) == 1;
      ReplicaDifference found{.parameter = items[item].parameter, .weight = items[item].weight};
      for (const auto& [sum, those] : by_sum) {
        auto& list = known && sum == most->first ? found.others : found.ranks;
        list.insert(list.end(), those.begin(), those.end());
      }
      std::sort(found.ranks.begin(), found.ranks.end());
      differences.push_back(std::move(found));
    }
  }
  return differences;
}

std::vector<ReplicaDifference> verify_replicas(ModuleRef model) {
  const auto runtime = Runtime::of_model(*model, "verify_replicas");
  runtime->wait_until_idle("verify_replicas");
  const auto& world = runtime->world();
  if (world.size() == 1 || world.launcher() == Launcher::emulated || world.device().is_meta())
    return {};
  const c10::NoGradGuard no_grad;
  // The forwards of a step have gathered what other ranks updated in the one before.
  const auto items =
      replica_items(runtime->units().all(), runtime->parts().state.backwards_done() > 0);
  const auto sums = checksums(items);
  std::vector<int64_t> own;
  for (size_t i = 0; i < items.size(); ++i) {
    own.push_back(static_cast<int64_t>(items[i].identity));
    own.push_back(sums[i]);
  }
  const auto device = world.device();
  const auto mine = at::tensor(own, at::kLong).to(device);
  auto all = at::empty({world.size() * mine.numel()}, mine.options());
  world.communicator().all_gather(all, mine).synchronize();
  all = all.cpu();
  const auto* first = all.const_data_ptr<int64_t>();
  return compare_replicas(items, {first, first + all.numel()}, world.size());
}

std::string ReplicaDifference::text() const {
  const auto named = [](const std::vector<int64_t>& list) {
    return c10::str(list.size() == 1 ? "rank " : "ranks ", c10::Join(", ", list));
  };
  const auto what = c10::str("the ", weight, " of parameter '", parameter, "'");
  if (others.empty())
    return c10::str(what, " differs between ", named(ranks), ", which should hold the same");
  return c10::str(what, " on ", named(ranks), " is not that of ", named(others), ", which agree");
}

}  // namespace sherd
