// SPDX-License-Identifier: Apache-2.0
#include "sherd/nn/exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/streams.h"
#include "nn/weight_gradient.h"
#include "shard/exchange_call.h"

namespace sherd {

/// The ranks along the axis, and their communicator.
struct Exchange::Line : std::enable_shared_from_this<Line> {
  Line(const Mesh& of_mesh, const std::string& along, const std::string& what_for)
      : mesh(of_mesh),
        axis(along),
        purpose(what_for),
        rank(mesh.coordinate(axis)),
        size(mesh.size(axis)) {}
  Mesh mesh;
  std::string axis;
  std::string purpose;
  int64_t rank = 0;
  int64_t size = 1;
  Communicator* communicator = nullptr;  // the mesh's; null: one rank

  /// Returns the beginning of an error.
  std::string scope(const char* operation) const {
    return c10::str("[nn] ", operation, " of '", purpose, "' along '", axis, "': ");
  }
  /// Returns an exchange of this tensor for the program and the other ranks.
  ExchangeCall call(ExchangeKind kind, at::TensorList tensors, int64_t bytes) const {
    return {
        .kind = kind,
        .communicator = communicator,
        .world_ranks = mesh.ranks(axis),
        .owner = shared_from_this(),
        .axis = axis,
        .purpose = purpose,
        .tensors = tensors,
        .bytes = bytes};
  }
  std::vector<at::Tensor> gather(at::TensorList tensors, at::IntArrayRef dims) const;
  at::Tensor gather(const at::Tensor& x, int64_t dim) const {
    return gather(at::TensorList(x), dim).front();
  }
  at::Tensor scatter(const at::Tensor& x, int64_t dim) const;
  at::Tensor move_rows(
      const at::Tensor& rows,
      const std::vector<int64_t>& sent,
      const std::vector<int64_t>& received,
      std::optional<int64_t> mean_rows) const;
  at::Tensor move_dims(const at::Tensor& x, int64_t split_dim, int64_t join_dim) const;
  at::Tensor cut(const char* operation, const at::Tensor& x, int64_t dim) const;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OnStream = Communicator::OnStream;

OnStream stream_of(const at::Tensor& x) {
  return x.is_cuda() ? OnStream(current_stream(x.device())) : OnStream();
}

/// A function that moves a tensor, and the one that moves its gradient back.
struct BothWays : torch::CustomClassHolder {
  using Move = std::function<at::Tensor(const at::Tensor&)>;
  BothWays(Move to, Move from) : there(std::move(to)), back(std::move(from)) {}
  Move there;
  Move back;
};

// A gradient that is missing is sent as zeros: the other ranks wait for it.
struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(
      AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<BothWays>& ways) {
    context->saved_data["ways"] = c10::IValue::make_capsule(ways);
    return ways->there(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("an exchange");
    const auto ways =
        c10::static_intrusive_pointer_cast<BothWays>(context->saved_data["ways"].toCapsule());
    return {ways->back(gradients[0]), at::Tensor()};
  }
};

at::Tensor exchange(const at::Tensor& x, BothWays::Move there, BothWays::Move back) {
  return ExchangeFunction::apply(
      x, c10::make_intrusive<BothWays>(std::move(there), std::move(back)));
}

/// Returns an empty result for `ranks` parts like `part` joined along `dim`, and where the parts
/// arrive one after the other: in the result itself if they lie there like that.
struct Joined {
  Joined(const at::Tensor& part, int64_t dim, int64_t ranks) : dim_(dim) {
    auto shape = part.sizes().vec();
    const auto before = c10::multiply_integers(shape.begin(), shape.begin() + dim);
    if (before == 1) {
      shape[static_cast<size_t>(dim)] *= ranks;
      result_ = at::empty(shape, part.options());
      return;
    }
    shape.insert(shape.begin(), ranks);
    parts_ = at::empty(shape, part.options());
  }
  const at::Tensor& arrivals() const { return parts_.defined() ? parts_ : result_; }
  at::Tensor result() const {
    if (!parts_.defined()) return result_;
    return parts_.movedim(0, dim_).flatten(dim_, dim_ + 1).contiguous();
  }

 private:
  int64_t dim_;
  at::Tensor parts_;
  at::Tensor result_;
};

int64_t checked_dim(const at::Tensor& x, int64_t dim, const std::string& scope) {
  TORCH_CHECK_VALUE(x.defined(), scope, "the tensor is undefined");
  TORCH_CHECK_VALUE(
      dim >= -x.dim() && dim < x.dim(), scope, "dim ", dim, " of ", x.sizes(), ": there are ",
      x.dim());
  return dim < 0 ? dim + x.dim() : dim;
}

int64_t bytes_of(const at::Tensor& x) {
  return x.numel() * x.element_size();
}

/// Returns `rows` divided among ranks as evenly as possible.
std::vector<int64_t> even_parts(int64_t rows, int64_t ranks) {
  std::vector<int64_t> parts(static_cast<size_t>(ranks), rows / ranks);
  for (int64_t i = 0; i < rows % ranks; ++i) ++parts[static_cast<size_t>(i)];
  return parts;
}

std::vector<int64_t> times(const std::vector<int64_t>& counts, int64_t factor) {
  auto result = counts;
  for (auto& count : result) count *= factor;
  return result;
}

}  // namespace

// ---- the operations, without gradients ----------------------------------------------------------

/// Returns the parts for the ranks one after the other, [size, ..], dense.
at::Tensor Exchange::Line::cut(const char* operation, const at::Tensor& x, int64_t dim) const {
  TORCH_CHECK_VALUE(
      x.size(dim) % size == 0, scope(operation), "dim ", dim, " of ", x.sizes(),
      " is not divisible by ", size, " ranks: use a size that is a multiple of them");
  return x.unflatten(dim, {size, x.size(dim) / size}).movedim(dim, 0).contiguous();
}

/// One operation for all. `dims`: of each tensor.
std::vector<at::Tensor> Exchange::Line::gather(at::TensorList tensors, at::IntArrayRef dims) const {
  std::vector<Joined> joined;
  std::vector<Transfer> transfers;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto part = tensors[i].contiguous();
    joined.emplace_back(part, dims[i], size);
    transfers.push_back({joined.back().arrivals(), part});
    bytes += size * bytes_of(part);
  }
  make_exchange(call(ExchangeKind::gather_rows, tensors, bytes), [&] {
    communicator->all_gather(transfers, stream_of(tensors.front())).wait();
  });
  std::vector<at::Tensor> results;
  for (const auto& one : joined) results.push_back(one.result());
  return results;
}

at::Tensor Exchange::Line::scatter(const at::Tensor& x, int64_t dim) const {
  const auto parts = cut("scatter_sum", x, dim);
  auto result = at::empty(parts.sizes().slice(1), parts.options());
  make_exchange(call(ExchangeKind::scatter_sum, x, bytes_of(parts)), [&] {
    communicator->reduce_scatter(result, parts, Reduction::sum(), stream_of(x)).wait();
  });
  return result;
}

at::Tensor Exchange::Line::move_rows(
    const at::Tensor& rows,
    const std::vector<int64_t>& sent,
    const std::vector<int64_t>& received,
    std::optional<int64_t> mean_rows) const {
  const auto dense = rows.contiguous();
  auto shape = dense.sizes().vec();
  const auto row = c10::multiply_integers(shape.begin() + 1, shape.end());
  shape[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  auto result = at::empty(shape, dense.options());
  const int64_t moved = mean_rows.value_or(dense.size(0));
  auto exchange = call(ExchangeKind::all_to_all, dense, moved * row * dense.element_size());
  exchange.routed = mean_rows.has_value();
  exchange.sent = sent;
  exchange.received = received;
  make_exchange(exchange, [&] {
    communicator->all_to_all(result, dense, times(received, row), times(sent, row), stream_of(rows))
        .wait();
  });
  return result;
}

at::Tensor Exchange::Line::move_dims(
    const at::Tensor& x, int64_t split_dim, int64_t join_dim) const {
  const auto parts = cut("all_to_all_dims", x, split_dim);
  const Joined joined(parts[0], join_dim, size);
  make_exchange(call(ExchangeKind::all_to_all_dims, x, bytes_of(parts)), [&] {
    communicator->all_to_all(joined.arrivals(), parts, {}, {}, stream_of(x)).wait();
  });
  return joined.result();
}

// ---- the public interface -----------------------------------------------------------------------

Exchange::Exchange(const Mesh& mesh, const std::string& axis, const std::string& purpose) {
  TORCH_CHECK_VALUE(
      !purpose.empty(), "[nn] an exchange along '", axis, "' has no purpose: name what it is for");
  auto line = std::make_shared<Line>(mesh, axis, purpose);
  if (line->size > 1) line->communicator = &line->mesh.communicator(axis, "exchange " + purpose);
  line_ = std::move(line);
}

const std::string& Exchange::axis() const {
  return line_->axis;
}
const std::string& Exchange::purpose() const {
  return line_->purpose;
}
int64_t Exchange::rank() const {
  return line_->rank;
}
int64_t Exchange::size() const {
  return line_->size;
}

at::Tensor Exchange::gather_rows(const at::Tensor& x, int64_t dim) const {
  const int64_t along = checked_dim(x, dim, line_->scope("gather_rows"));
  if (size() == 1) return x;
  return exchange(
      x, [line = line_, along](const at::Tensor& part) { return line->gather(part, along); },
      [line = line_, along](const at::Tensor& gradient) { return line->scatter(gradient, along); });
}

std::vector<at::Tensor> Exchange::gather_rows_together(at::TensorList tensors, int64_t dim) const {
  const c10::NoGradGuard no_grad;
  std::vector<int64_t> dims;
  for (const auto& x : tensors) dims.push_back(checked_dim(x, dim, line_->scope("gather_rows")));
  if (size() == 1 || tensors.empty()) return tensors.vec();
  return line_->gather(tensors, dims);
}

at::Tensor Exchange::scatter_sum(const at::Tensor& x, int64_t dim) const {
  const int64_t along = checked_dim(x, dim, line_->scope("scatter_sum"));
  if (size() == 1) return x;
  return exchange(
      x, [line = line_, along](const at::Tensor& whole) { return line->scatter(whole, along); },
      [line = line_, along](const at::Tensor& gradient) { return line->gather(gradient, along); });
}

at::Tensor Exchange::all_to_all(
    const at::Tensor& rows,
    std::span<const int64_t> sent,
    std::span<const int64_t> received,
    std::optional<int64_t> mean_rows) const {
  const auto scope = line_->scope("all_to_all");
  checked_dim(rows, 0, scope);
  const std::vector<int64_t> going(sent.begin(), sent.end());
  const std::vector<int64_t> coming(received.begin(), received.end());
  for (const auto& counts : {going, coming}) {
    TORCH_CHECK_VALUE(
        std::ssize(counts) == size(), scope, "the counts [", c10::Join(", ", counts), "] are ",
        counts.size(), " for ", size(), " ranks: give one for each");
  }
  TORCH_CHECK_VALUE(
      std::accumulate(going.begin(), going.end(), int64_t{0}) == rows.size(0), scope,
      "the sent counts [", c10::Join(", ", going), "] do not add up to the ", rows.size(0),
      " rows of ", rows.sizes());
  if (size() == 1) return rows;
  return exchange(
      rows,
      [line = line_, going, coming, mean_rows](const at::Tensor& x) {
        return line->move_rows(x, going, coming, mean_rows);
      },
      [line = line_, going, coming, mean_rows](const at::Tensor& gradient) {
        return line->move_rows(gradient, coming, going, mean_rows);
      });
}

at::Tensor Exchange::all_to_all_dims(
    const at::Tensor& x, int64_t split_dim, int64_t join_dim) const {
  const auto scope = line_->scope("all_to_all_dims");
  const int64_t split = checked_dim(x, split_dim, scope);
  const int64_t join = checked_dim(x, join_dim, scope);
  if (size() == 1) return x;
  return exchange(
      x,
      [line = line_, split, join](const at::Tensor& y) { return line->move_dims(y, split, join); },
      [line = line_, split, join](const at::Tensor& gradient) {
        return line->move_dims(gradient, join, split);
      });
}

at::Tensor Exchange::sum_numbers(const at::Tensor& x) const {
  TORCH_CHECK_VALUE(x.defined(), line_->scope("sum_numbers"), "the tensor is undefined");
  const c10::NoGradGuard no_grad;
  if (size() == 1) return x.detach();
  auto sum = x.detach().clone(at::MemoryFormat::Contiguous);
  make_exchange(line_->call(ExchangeKind::sum_numbers, sum, bytes_of(sum)), [&] {
    line_->communicator->all_reduce(sum, Reduction::sum(), stream_of(x)).wait();
  });
  return sum;
}

ExchangedCounts Exchange::exchange_counts(
    const at::Tensor& sent, std::optional<int64_t> rows) const {
  const auto scope = line_->scope("exchange_counts");
  checked_dim(sent, 0, scope);
  TORCH_CHECK_VALUE(
      sent.size(0) == size() && !sent.is_floating_point(), scope, "counts of ", sent.sizes(),
      " in ", sent.scalar_type(), ": they are integers, [", size(), ", ..] for as many ranks");
  TORCH_CHECK_VALUE(
      !sent.is_meta() || rows, scope,
      "counts have no values on the meta device: say how many rows they stand for");
  const auto going = sent.to(at::kLong).contiguous();
  auto coming = size() == 1 ? going : at::empty_like(going);
  if (size() > 1) {
    make_exchange(line_->call(ExchangeKind::exchange_counts, going, bytes_of(going)), [&] {
      line_->communicator->all_to_all(coming, going, {}, {}, stream_of(sent)).wait();
    });
  }
  if (sent.is_meta()) return {coming, even_parts(*rows, size()), even_parts(*rows, size())};
  const auto rows_of = [&](const at::Tensor& counts) { return counts.view({size(), -1}).sum(1); };
  const auto on_host = at::stack({rows_of(going), rows_of(coming)}).cpu();
  const auto* first = on_host.const_data_ptr<int64_t>();
  return {coming, {first, first + size()}, {first + size(), first + 2 * size()}};
}

}  // namespace sherd
