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
      parameters_(layout_, parameters, storage_.model_weight().front().storage),
      fp8_(layout_),
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

void Group::show(bool backward) {
  const auto full = transfers_.full_parameters();
  if (!layout_.is_fp8()) return parameters_.show(full.front().mutable_data_ptr());
  fp8_.show(full, backward, backward ? transfers_.transposed_copies() : std::vector<at::Tensor>());
}

void Group::show_bytes(const at::Tensor& bytes) {
  if (!bytes.defined()) return show(/*backward=*/false);
  if (!layout_.is_fp8()) return parameters_.show(bytes.mutable_data_ptr());
  fp8_.show(layout_.payload_views(bytes), /*backward=*/false, {});
}

at::Tensor Group::show_decoded(const at::Tensor& bytes) {
  if (!layout_.is_fp8()) {
    show_bytes(bytes);
    return bytes;
  }
  const auto full = bytes.defined() ? layout_.payload_views(bytes) : transfers_.full_parameters();
  auto decoded = fp8_.decode_all(full);
  parameters_.show(decoded.mutable_data_ptr());
  return decoded;
}

void Group::hide(bool keeps_memory) {
  parameters_.hide();
  fp8_.hide();
  if (keeps_memory) return;
  transfers_.free_parameter_slot();
  transfers_.free_transposed_slot();
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
  const auto add = [&](int64_t& bytes, const Part& held, c10::ScalarType dtype, int64_t block = 1) {
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    int64_t used = 0;
    for (int64_t member = 0; member < report.parameters; ++member) {
      used += flat.held_by(held, member).length;
    }
    bytes += flat.part_size(held.count) / block * element;
    report.padding_bytes += (flat.part_size(held.count) - used) / block * element;
  };
  for (const auto& [dtype, block] : layout_.model_buffers()) {
    add(report.model_bytes, layout_.part(Role::parameter), dtype, block);
    if (layout_.needs_gather()) add(report.gathered_bytes, GroupLayout::whole(), dtype, block);
  }
  if (!layout_.shares_weight()) {
    add(report.main_bytes, layout_.part(Role::optimizer), dtypes.main);
  }
  if (traits().trainable) add(report.gradient_bytes, layout_.part(Role::gradient), dtypes.gradient);
  return report;
}

}  // namespace sherd
