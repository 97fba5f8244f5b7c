// SPDX-License-Identifier: Apache-2.0
#include "shard/runtime/runtime_parts.h"

#include <c10/util/Exception.h>

#include "comm/flight/flight_ring.h"
#include "shard/outside_inference.h"

namespace sherd {

RuntimeParts::RuntimeParts(Unit& root)
    : world(root.mesh().world()),
      units(root),
      program(world, units),
      executor(world, units, state, program, watch),
      agreement(world, units, shards, state, graph, program, watch),
      orders(units, state, graph, agreement.records()),
      abandonment(world, state),
      exchanges(world, graph, program, abandonment),
      follower(world, units, state, program, executor, agreement.records(), watch),
      weights(shards) {
  agree_on_cuts(units.all());
  state.frozen.assign(units.frozen().size(), false);
  orders.build(units.default_order());
  use(orders.next());
  shards = parameter_shards(units.all());  // with the main gradients, which use() has allocated
  weights.prepare();
  encoded.prepare(units);
}

void RuntimeParts::use(const std::shared_ptr<const Program>& next) {
  const OutsideInference normal;
  if (program.has_streams()) program.streams().finish();
  for (auto* unit : units) unit->hide();
  state.note_released();
  program.bind(next, [&] { watch.release(); });
  executor.forget();
  watch.prepare(units.all(), state.micro_batches());
  // What was written here (shards, an empty arena) is there before the first gather reads or
  // writes.
  program.signal_published();
  agreement.set_program_agreed(false);
}

void RuntimeParts::check_published() const {
  // Between the last backward and publish is where an optimizer may have written unseen.
  const bool compare = state.has_all_backwards() && !world.device().is_meta();
  TORCH_CHECK(
      !weights.are_written(compare), "[shard] the main weights of '", units.root().name(),
      "' have changed, but the model still computes with the old ones: call sherd::publish(model) "
      "after optimizer.step()");
}

void RuntimeParts::record_section(const Section& section) const {
  auto* ring = FlightRing::current();
  if (!ring || world.device().is_meta()) return;
  ring->begin_section(section.name, static_cast<uint8_t>(section.kind), state.step() + 1);
}

void RuntimeParts::encode_stale_weights() {
  if (!encoded.encode_stale()) return;
  state.note_encoded();
  program.signal_published();
}

}  // namespace sherd
