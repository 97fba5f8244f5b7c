// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/fp8/encode_weights.h"
#include "sherd/comm/communicator.h"

namespace sherd {

class Group;
class ModelUnits;

/// Keeps the fp8 weights of a model equal to the encoding of its main weights. All that changes
/// main weights (updates, initial values, edits, loading) comes here in the end. The program's
/// instructions `exchange` and `publish` stand for encode().
class EncodedWeights {
 public:
  /// Allocates the scales and prepares the work. The groups are bound to a program.
  void prepare(const ModelUnits& units);

  /// Encodes all weights: finds the largest magnitude of each, exchanges them in one all-reduce for
  /// each axis that optimizers are sharded over, and encodes this rank's elements. Runs on the
  /// current stream; on CPU it blocks. Collective, unless no group exchanges scales.
  void encode();
  /// The same, if main weights have changed since: all ranks have changed them alike. Returns
  /// whether they have.
  bool encode_stale();

  int64_t scale_bytes() const {
    return scales_.defined() ? static_cast<int64_t>(scales_.nbytes()) : 0;
  }
  int64_t control_bytes() const {
    return amaxes_.defined() ? static_cast<int64_t>(amaxes_.nbytes()) : 0;
  }

 private:
  /// Weights with one scale each, and main weights of one dtype.
  struct Pieces {
    c10::ScalarType dtype{};
    std::vector<WeightPiece> pieces;
  };
  /// Magnitudes that are exchanged over one axis.
  struct Exchange {
    Communicator* communicator = nullptr;
    std::vector<at::Tensor> amaxes;
  };
  void add_exchange(Communicator* communicator, const at::Tensor& amaxes);
  void encode_with_exchanged_scales();

  std::vector<Group*> groups_;
  at::Tensor amaxes_;
  at::Tensor scales_;
  std::vector<Pieces> pieces_;
  std::vector<Exchange> exchanges_;  // over inner axes, then over outer ones
};

}  // namespace sherd
