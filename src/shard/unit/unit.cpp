// SPDX-License-Identifier: Apache-2.0
#include "shard/unit/unit.h"

#include <c10/util/Exception.h>

#include "shard/runtime/runtime.h"

namespace sherd {

Unit::~Unit() {
  if (runtime_) runtime_->drop(*this);
}

void Unit::set_name(const std::string& name) {
  settings_.set_name(name);
  members_.set_unit_name(name);
  activity_.set_unit_name(name);
}

void Unit::take(const std::vector<UnshardedParameter>& candidates) {
  members_.take(candidates, settings_, shared_from_this());
  activity_.set_unit_name(name());
}

std::vector<UnshardedParameter> Unit::give_back() {
  const auto self = shared_from_this();  // the parameters, which keep it alive, let go of it
  return members_.give_back(name());
}

UnitSpec Unit::spec() const {
  UnitSpec spec;
  spec.name = name();
  for (const auto& group : groups()) spec.groups.push_back(group->spec(name()));
  spec.keep_gathered = options().keep_gathered;
  return spec;
}

void Unit::show(bool backward) {
  for (const auto& group : groups()) group->show(backward);
  activity_.set_gathered();
}

void Unit::hide(bool keeps_memory) {
  for (const auto& group : groups()) group->hide(keeps_memory);
  activity_.set_released();
}

void Unit::leave() {
  if (!activity_.leave()) return;
  // Groups that rest whole are hidden as well: a call that bypasses the boundary is an error for
  // every strategy. Gathered groups are hidden by their release.
  for (const auto& group : groups()) {
    if (!group->layout().needs_gather()) group->hide();
  }
}

void Unit::receive(size_t group, size_t member, const at::Tensor& gradient) {
  TORCH_CHECK(
      activity_.is_collecting(), "[shard] a gradient of parameter '", groups()[group]->name(member),
      "' of unit '", name(),
      "' comes when its gradients are already reduced, or outside any backward of the root: use "
      "the unit's outputs alone outside it");
  groups()[group]->inbox().receive(member, gradient);
}

}  // namespace sherd
