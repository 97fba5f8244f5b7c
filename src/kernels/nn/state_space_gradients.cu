// SPDX-License-Identifier: Apache-2.0
// Shapes as in state_space.h; L = 128 positions of a chunk.
#include "kernels/nn/state_space_device.cuh"

namespace sherd {
namespace {

constexpr int kStrips = kSpaceChunk / 16;  // a warp's positions
constexpr int kLastWarp = 4;               // it finishes a head: the one with the least other work

/// Shared memory of a block: the keys of its group, two heads, and numbers of the chunk's
/// positions.
template <int kState>
class GradientShared {
 public:
  using Keys = SharedTile<kSpaceChunk, kState>;
  using Values = SharedTile<kSpaceChunk, kSpaceDims>;
  using States = SharedTile<kSpaceDims, kState>;
  static constexpr int kTimes = 2 * kSpaceChunk * sizeof(float);
  static constexpr int kStage = 2 * Values::kBytes + 2 * States::kBytes + kTimes;
  static constexpr int kNumbers = (3 + kStrips) * kSpaceChunk + 2 * kStrips;
  static constexpr int kBytes = 2 * Keys::kBytes + 2 * kStage + kNumbers * sizeof(float);
  static_assert(2 * kStage >= SharedTile<kSpaceChunk, kSpaceChunk>::kBytes);

  __device__ explicit GradientShared(char* data)
      : reads(data), writes(data + Keys::kBytes), stages(data + 2 * Keys::kBytes) {
    from_states = reinterpret_cast<float*>(stages + 2 * kStage);
    of_writers = from_states + kSpaceChunk;
    left = of_writers + kSpaceChunk;
    of_readers = left + kSpaceChunk;
    of_through = of_readers + kStrips * kSpaceChunk;
    of_end = of_through + kStrips;
  }
  struct Stage {
    Values x, dy;
    States before, after;
    float *steps, *decays;
  };
  __device__ Stage stage(int i) const {
    char* at = stages + i % 2 * kStage;
    char* states = at + 2 * Values::kBytes;
    float* times = reinterpret_cast<float*>(states + 2 * States::kBytes);
    return {Values(at),     Values(at + Values::kBytes),
            States(states), States(states + States::kBytes),
            times,          times + kSpaceChunk};
  }

  Keys reads, writes;
  char* stages;
  float* from_states;  ///< of each position, dy · what it read of the state before the chunk
  float* of_writers;   ///< the gradient of its step by way of the chunk's later positions
  float* left;         ///< and of what it leaves behind
  float* of_readers;   ///< what it read of earlier positions, times dy: by strip of those
  float* of_through;   ///< by warp
  float* of_end;       ///< by warp: state · its gradient
};

/// A block has a chunk and the heads of a group, one after the other. Products of chunk × chunk
/// have rows of writers s and columns of readers l ≥ s; a warp has 16 rows. The products read ·
/// write, and the sum of their gradients over the heads, stay in registers.
template <int kState>
class Gradients {
 public:
  using Shared = GradientShared<kState>;

  __device__ Gradients(const DeviceSpace& space, const DeviceSpaceGradients& of, char* shared)
      : space_(space),
        of_(of),
        shared_(shared),
        at_(space, blockIdx.x, blockIdx.z),
        heads_(space.heads / space.groups),
        first_head_(blockIdx.y * heads_),
        strip_(warp() < 4 ? warp() : 11 - warp()),  // the warps of a scheduler: equal work
        row_(strip_ * 16 + lane() / 4) {}

  __device__ void run() {
    find_scores();
    fetch(0);
    for (int i = 0; i < heads_; ++i) {
      fetch(i + 1);
      __pipeline_wait_prior(1);
      __syncthreads();
      const auto stage = shared_.stage(i);
      each_row(stage);
      find_end(stage);
      of_states(stage);
      within_chunk(stage);
      write_values(stage, first_head_ + i);
      __syncthreads();
      if (warp() == kLastWarp) finish_head(stage, first_head_ + i);
    }
    __syncthreads();
    write_keys();
  }

 private:
  static constexpr int kDimTiles = kSpaceDims / 8;
  static constexpr int kStateTiles = kState / 8;

  __device__ static int warp() { return threadIdx.x / kWarp; }
  __device__ static int lane() { return threadIdx.x % kWarp; }
  /// The row and column of a result's element e, in the tile `n` of 8 columns.
  __device__ int row_of(int e) const { return row_ + e / 2 * 8; }
  __device__ static int column_of(int n, int e) { return n * 8 + lane() % 4 * 2 + e % 2; }

  __device__ void find_scores() {
    const int group = blockIdx.y;
    shared_.reads.fetch(
        at_.rows(space_.read, group, kState), space_.read.position_stride, at_.valid);
    shared_.writes.fetch(
        at_.rows(space_.write, group, kState), space_.write.position_stride, at_.valid);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kState; k += 16) {
      const auto left = shared_.writes.left(strip_ * 16, k);
#pragma unroll
      for (int step = 0; step < kStrips; ++step) {
        if (step < strip_) continue;
        multiply_add(scores_[step], left, shared_.reads.right_of_rows(step * 16, k));
      }
    }
  }

  __device__ void fetch(int i) {
    if (i < heads_) {
      const auto stage = shared_.stage(i);
      const int head = first_head_ + i;
      const int64_t state = at_.state(space_, head);
      stage.x.fetch(at_.rows(space_.x, head, kSpaceDims), space_.x.position_stride, at_.valid);
      stage.dy.fetch(at_.rows(of_.y, head, kSpaceDims), of_.y.position_stride, at_.valid);
      stage.before.fetch(of_.states + state, kState, kSpaceDims);
      stage.after.fetch(of_.d_states + state, kState, kSpaceDims);
      if (warp() == kLastWarp) {  // which reads them last
        fetch_times(stage.steps, space_.steps + at_.times(space_, head));
        fetch_times(stage.decays, space_.decays + at_.times(space_, head));
      }
    }
    __pipeline_commit();
  }

  __device__ void each_row(const typename Shared::Stage& stage) {
    end_ = stage.decays[kSpaceChunk - 1];
    for (int half = 0; half < 2; ++half) {
      steps_[half] = stage.steps[row_ + half * 8];
      sums_[half] = stage.decays[row_ + half * 8];
    }
  }

  /// The gradient of a chunk's whole decay, by way of the state before it.
  __device__ void find_end(const typename Shared::Stage& stage) {
    float sum = 0;
    for (int i = threadIdx.x; i < kSpaceDims * kState / 2; i += kSpaceThreads) {
      const int row = i / (kState / 2), column = i % (kState / 2) * 2;
      const float2 before = unpacked(stage.before.pair(row, column));
      const float2 after = unpacked(stage.after.pair(row, column));
      sum += before.x * after.x + before.y * after.y;
    }
    sum = sum_over(sum, 31);
    if (lane() == 0) shared_.of_end[warp()] = sum;
  }

  /// What positions read of the state before the chunk, and what they leave behind.
  __device__ void of_states(const typename Shared::Stage& stage) {
    ResultTile result[kDimTiles] = {};
    float sums[2] = {};
    multiply_keys(result, shared_.reads, stage.before);
    each_value([&](int n, int e, float dy) { sums[e / 2] += result[n].values[e] * dy; }, stage.dy);
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_over(sums[half], 3) * __expf(sums_[half]);
      if (lane() % 4 == 0) shared_.from_states[row_ + half * 8] = sum;
      sums[half] = 0;
    }
    for (auto& tile : dx_) tile = {};
    multiply_keys(dx_, shared_.writes, stage.after);
    each_value(
        [&](int n, int e, float x) {
          sums[e / 2] += dx_[n].values[e] * x;
          dx_[n].values[e] *= __expf(end_ - sums_[e / 2]);
        },
        stage.x);
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_over(sums[half], 3) * __expf(end_ - sums_[half]);
      if (lane() % 4 == 0) shared_.left[row_ + half * 8] = sum;
    }
  }

  /// result += keys of the warp's rows · stateᵀ.
  __device__ void multiply_keys(
      ResultTile (&result)[kDimTiles],
      const typename Shared::Keys& keys,
      const typename Shared::States& state) const {
#pragma unroll
    for (int k = 0; k < kState; k += 16) {
      const auto left = keys.left(strip_ * 16, k);
#pragma unroll
      for (int n = 0; n < kDimTiles; n += 2) {
        multiply_add(result + n, left, state.right_of_rows(n * 8, k));
      }
    }
  }

  /// visit(n, e, value) for the elements of a tile that a result has.
  template <class Visit>
  __device__ void each_value(Visit visit, const typename Shared::Values& values) const {
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 two = unpacked(values.pair(row_ + half * 8, column_of(n, 0)));
        visit(n, half * 2, two.x);
        visit(n, half * 2 + 1, two.y);
      }
    }
  }

  __device__ void within_chunk(const typename Shared::Stage& stage) {
    LeftTile x[kSpaceDims / 16];
#pragma unroll
    for (int k = 0; k < kSpaceDims / 16; ++k) x[k] = stage.x.left(strip_ * 16, k * 16);
    of_writer_[0] = of_writer_[1] = 0;
#pragma unroll
    for (int step = 0; step < kStrips; ++step) {
      if (step < strip_) continue;
      ResultTile d_weights[2] = {}, weights[2];
#pragma unroll
      for (int k = 0; k < kSpaceDims / 16; ++k) {
        multiply_add(d_weights, x[k], stage.dy.right_of_rows(step * 16, k * 16));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float of_reader[2] = {};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int l = column_of(step * 2 + h, e);
          const float fade = l >= row_of(e) ? __expf(stage.decays[l] - sums_[e / 2]) : 0.0f;
          const float faded = d_weights[h].values[e] * fade;
          weights[h].values[e] = scores_[step][h].values[e] * fade;
          const float both = scores_[step][h].values[e] * faded;
          of_writer_[e / 2] += both;
          of_reader[e % 2] += both * steps_[e / 2];
          d_scores_[step][h].values[e] += faded * steps_[e / 2];
        }
        for (int j = 0; j < 2; ++j) {
          const float sum = sum_over(of_reader[j], 4 | 8 | 16);
          if (lane() < 4) {
            shared_.of_readers[strip_ * kSpaceChunk + column_of(step * 2 + h, j)] = sum;
          }
        }
      }
      const auto left = as_left(weights);
#pragma unroll
      for (int n = 0; n < kDimTiles; n += 2) {
        multiply_add(dx_ + n, left, stage.dy.right(step * 16, n * 8));
      }
    }
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_over(of_writer_[half], 3);
      if (lane() % 4 == 0) shared_.of_writers[row_ + half * 8] = sum;
    }
  }

  __device__ void write_values(const typename Shared::Stage& stage, int head) {
    const float through = space_.through[head];
    Bf16* to = at_.rows(of_.x, head, kSpaceDims);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kDimTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int s = row_ + half * 8, column = column_of(n, 0);
        const float2 dy = unpacked(stage.dy.pair(s, column));
        const float2 x = unpacked(stage.x.pair(s, column));
        sum += dy.x * x.x + dy.y * x.y;
        const float* dx = dx_[n].values + half * 2;
        if (s >= at_.valid) continue;
        *reinterpret_cast<uint32_t*>(to + s * of_.x.position_stride + column) =
            packed(dx[0] * steps_[half] + through * dy.x, dx[1] * steps_[half] + through * dy.y);
      }
    }
    sum = sum_over(sum, 31);
    if (lane() == 0) shared_.of_through[warp()] = sum;
  }

  /// The gradients of steps and of the head's own parameters. A lane has four positions; a sum of
  /// decays has all steps of the chunk up to its position.
  __device__ void finish_head(const typename Shared::Stage& stage, int head) {
    constexpr int kEach = kSpaceChunk / kWarp;
    float direct[kEach], d_sums[kEach], fading = 0;
    for (int j = 0; j < kEach; ++j) {
      const int l = lane() * kEach + j;
      float of_reader = 0;
      for (int strip = 0; strip <= l / 16; ++strip) {
        of_reader += shared_.of_readers[strip * kSpaceChunk + l];
      }
      direct[j] = shared_.of_writers[l] + shared_.left[l];
      d_sums[j] = shared_.from_states[l] + of_reader - stage.steps[l] * direct[j];
      fading += stage.steps[l] * shared_.left[l];
    }
    float through = 0, end = 0;
    for (int i = 0; i < kStrips; ++i) {
      through += shared_.of_through[i];
      end += shared_.of_end[i];
    }
    float after = sum_over(fading, 31) + end * __expf(stage.decays[kSpaceChunk - 1]);
    float own = 0;
    for (const float value : d_sums) own += value;
    float from = own;  // of this lane and those behind it
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const float other = __shfl_down_sync(kAllLanes, from, offset);
      if (lane() + offset < kWarp) from += other;
    }
    after += from - own;
    const float decay = -expf(space_.decay_log[head]);
    Bf16* to = at_.rows(of_.raw_step, head, 1);
    float of_bias = 0, of_decay = 0;
    for (int j = kEach - 1; j >= 0; --j) {
      const int l = lane() * kEach + j;
      const float step = stage.steps[l];
      after += d_sums[j];
      of_decay += after * step * decay;
      // The slope of the softplus that gave this step.
      const float raw = (direct[j] + after * decay) * -expm1f(-step);
      of_bias += raw;
      if (l < at_.valid) to[l * of_.raw_step.position_stride] = __float2bfloat16_rn(raw);
    }
    of_bias = sum_over(of_bias, 31);
    of_decay = sum_over(of_decay, 31);
    if (lane() > 0) return;
    float* sums = of_.sums + (int64_t{at_.sequence} * space_.chunks + at_.chunk) * 3 * space_.heads;
    sums[head] = of_bias;
    sums[space_.heads + head] = of_decay;
    sums[2 * space_.heads + head] = through;
  }

  /// The gradients of read and write, from those of their products and by way of the states.
  __device__ void write_keys() {
    const SharedTile<kSpaceChunk, kSpaceChunk> d_scores(shared_.stages);
#pragma unroll
    for (int step = 0; step < kStrips; ++step) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* values = d_scores_[step][h].values;  // 0 where step < strip
        const int column = column_of(step * 2 + h, 0);
        d_scores.pair(row_, column) = packed(values[0], values[1]);
        d_scores.pair(row_ + 8, column) = packed(values[2], values[3]);
      }
    }
    __syncthreads();
    write_key(
        of_.write, of_.d_write, [&](int step) { return step >= strip_; },
        [&](int step) { return d_scores.left(strip_ * 16, step * 16); }, shared_.reads);
    write_key(
        of_.read, of_.d_read, [&](int step) { return step <= strip_; },
        [&](int step) { return d_scores.turned_left(step * 16, strip_ * 16); }, shared_.writes);
  }

  template <class Has, class Left>
  __device__ void write_key(
      const DeviceRows& target,
      const float* by_states,
      Has has,
      Left left_of,
      const typename Shared::Keys& keys) const {
    ResultTile result[kStateTiles] = {};
#pragma unroll
    for (int step = 0; step < kStrips; ++step) {
      if (!has(step)) continue;
      const auto left = left_of(step);
#pragma unroll
      for (int n = 0; n < kStateTiles; n += 2) {
        multiply_add(result + n, left, keys.right(step * 16, n * 8));
      }
    }
    const int group = blockIdx.y;
    Bf16* to = at_.rows(target, group, kState);
    const float* more =
        by_states +
        ((int64_t{at_.sequence} * space_.positions + at_.first) * space_.groups + group) * kState;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int l = row_ + half * 8;
      if (l >= at_.valid) continue;
#pragma unroll
      for (int n = 0; n < kStateTiles; ++n) {
        const int column = column_of(n, 0);
        const float2 other =
            *reinterpret_cast<const float2*>(more + int64_t{l} * space_.groups * kState + column);
        const float* sum = result[n].values + half * 2;
        *reinterpret_cast<uint32_t*>(to + l * target.position_stride + column) =
            packed(sum[0] + other.x, sum[1] + other.y);
      }
    }
  }

  const DeviceSpace& space_;
  const DeviceSpaceGradients& of_;
  Shared shared_;
  ChunkPlace at_;
  int heads_, first_head_, strip_, row_;
  ResultTile scores_[kStrips][2] = {};
  ResultTile d_scores_[kStrips][2] = {};
  ResultTile dx_[kDimTiles];
  float steps_[2], sums_[2], of_writer_[2];  // of the two rows
  float end_;
};

template <int kState>
__global__ void __launch_bounds__(kSpaceThreads)
    gradients_kernel(const DeviceSpace space, const DeviceSpaceGradients of) {
  extern __shared__ __align__(128) char shared[];
  Gradients<kState>(space, of, shared).run();
}

}  // namespace

void launch_space_gradients(
    const DeviceSpace& space, const DeviceSpaceGradients& of, cudaStream_t stream) {
  const dim3 blocks(space.chunks, space.groups, space.sequences);
  if (space.state == 128) {
    launch(
        gradients_kernel<128>, blocks, kSpaceThreads, GradientShared<128>::kBytes, stream, space,
        of);
  } else {
    launch(
        gradients_kernel<64>, blocks, kSpaceThreads, GradientShared<64>::kBytes, stream, space, of);
  }
}

}  // namespace sherd
