// SPDX-License-Identifier: Apache-2.0
#include "shard/group/group.h"

#include <c10/util/StringUtil.h>

#include "sherd/shard/diagnostics.h"

namespace sherd {

Group::Group(
    std::string label, const GroupTraits& traits, const std::vector<UnshardedParameter>& parameters)
    : label_(std::move(label)),
      layout_(traits, parameters),
      storage_(layout_, parameters),
      parameters_(layout_, parameters, storage_.model_weight().storage),
      inbox_(layout_),
      transfers_(layout_, storage_, inbox_) {}

void Group::set_unit_name(const std::string& unit) {
  range_names_.clear();
  for (size_t action = 0; action < kActions; ++action) {
    range_names_.push_back(c10::str(to_text(static_cast<Action>(action)), " ", unit, "/", label_));
  }
}

GroupSpec Group::spec(const std::string& unit) const {
  auto spec = layout_.spec();
  spec.name = unit + "/" + label_;
  return spec;
}

void Group::show() {
  const auto& full =
      layout_.needs_gather() ? transfers_.parameter_slot() : storage_.model_weight().storage;
  parameters_.show(full.mutable_data_ptr());
}

void Group::hide(bool keeps_memory) {
  parameters_.hide();
  if (!keeps_memory) transfers_.free_parameter_slot();
}

void Group::add_bytes(ModelBytes& bytes) const {
  storage_.add_bytes(bytes);
  bytes.arena += transfers_.eager_bytes();
}

GroupReport Group::report() const {
  const auto& dtypes = traits().dtypes;
  const auto& flat = layout_.flat();
  GroupReport report;
  report.group = label_;
  report.parameters = static_cast<int64_t>(size());
  for (int64_t member = 0; member < report.parameters; ++member) {
    report.elements += flat.numel(member);
  }
  report.padding = flat.full_size() - report.elements;
  const auto add = [&](int64_t& bytes, const Part& held, c10::ScalarType dtype) {
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    int64_t used = 0;
    for (int64_t member = 0; member < report.parameters; ++member) {
      used += flat.held_by(held, member).length;
    }
    bytes = flat.part_size(held.count) * element;
    report.padding_bytes += bytes - used * element;
  };
  add(report.model_bytes, layout_.part(Role::parameter), dtypes.model);
  if (!layout_.shares_weight()) {
    add(report.main_bytes, layout_.part(Role::optimizer), dtypes.main);
  }
  if (traits().trainable) add(report.gradient_bytes, layout_.part(Role::gradient), dtypes.gradient);
  if (layout_.needs_gather()) add(report.gathered_bytes, GroupLayout::whole(), dtypes.model);
  return report;
}

}  // namespace sherd
