// SPDX-License-Identifier: Apache-2.0
#include "shard/sharded_model.h"

#include "shard/diagnostics/findings.h"
#include "shard/runtime/runtime.h"

namespace sherd {

ShardedModel::ShardedModel(const torch::nn::Module& model, const char* caller)
    : runtime_(Runtime::of_model(model, caller)) {}

const World& ShardedModel::world() const {
  return runtime_->world();
}
const std::string& ShardedModel::name() const {
  return runtime_->root().name();
}
Loss ShardedModel::loss() const {
  return runtime_->root().root_options().loss;
}
const std::vector<ParameterShard>& ShardedModel::shards() const {
  return runtime_->shards();
}

std::vector<std::string> ShardedModel::exchange_text(const std::string& text, size_t most) const {
  std::vector<std::string> result;
  for (auto& said : runtime_->parts().agreement.records().collect(text, most))
    result.push_back(std::move(said.text));
  return result;
}

void ShardedModel::check_between_steps(const char* caller) const {
  runtime_->check_between_steps(caller);
}
void ShardedModel::check_complete(const char* caller) const {
  runtime_->check_complete(caller);
}
void ShardedModel::check_initialised() const {
  runtime_->units().check_initialised();
}
void ShardedModel::wait_until_idle(const char* caller) const {
  runtime_->wait_until_idle(caller);
}
int64_t ShardedModel::steps() const {
  return runtime_->state().step();
}
const std::vector<bool>& ShardedModel::frozen() const {
  return runtime_->state().frozen;
}
bool ShardedModel::capturing() const {
  return runtime_->parts().graph.capturing;
}

void ShardedModel::publish_update() const {
  runtime_->publish(/*by_optimizer=*/true);
}
void ShardedModel::publish_loaded() const {
  runtime_->publish_loaded();
}
void ShardedModel::expect_overflow(bool expected) const {
  runtime_->parts().watch.expect_overflow(expected);
}
void ShardedModel::report_findings(const char* consequence) const {
  sherd::report_findings(runtime_->parts(), consequence);
}
void ShardedModel::note_new_update() const {
  ++runtime_->parts().graph.update_version;
}
void ShardedModel::note_tokens_captured() const {
  runtime_->parts().graph.tokens_captured = true;
}
void ShardedModel::note_tokens_given() const {
  runtime_->parts().graph.tokens_given = true;
}

}  // namespace sherd
