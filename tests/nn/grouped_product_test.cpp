// SPDX-License-Identifier: Apache-2.0
#include "kernels/nn/grouped_product.h"

#include <limits>

#include "nn/comparison.h"

namespace sherd::testing {
namespace {

// Groups without rows come first, between others, and last.
const std::vector<int64_t> kGroupSizes{0, 5, 1, 0, 0, 34, 7, 0};

class GroupedProductTest : public OnDevice {
 protected:
  /// The inner sizes; a GPU takes multiples of 8.
  int64_t rows_size() const { return device().is_cpu() ? 7 : 16; }
  int64_t result_size() const { return device().is_cpu() ? 13 : 24; }
  int64_t groups() const { return std::ssize(kGroupSizes); }
  int64_t rows() const { return 47; }
  at::Tensor ends() const {
    return at::tensor(kGroupSizes, at::kLong).cumsum(0).to(at::kInt).to(device());
  }
  template <class Body>
  void each_group(Body body) const {
    int64_t first = 0;
    for (int64_t group = 0; group < groups(); ++group) {
      const int64_t count = kGroupSizes[static_cast<size_t>(group)];
      body(group, first, count);
      first += count;
    }
  }
};

TEST_P(GroupedProductTest, EachGroupIsMultipliedByItsMatrix) {
  for (const auto dtype : kDtypes) {
    const auto x = random({rows(), rows_size()}, dtype);
    const auto matrices = random({groups(), result_size(), rows_size()}, dtype);
    const auto gradient = random({rows(), result_size()}, dtype);
    const auto y = grouped_product(x, matrices, ends());
    const auto back = grouped_input_gradient(gradient, matrices, ends());
    ASSERT_EQ(y.scalar_type(), dtype);
    each_group([&](int64_t group, int64_t first, int64_t count) {
      const auto matrix = wide(matrices[group]);
      expect_rounded_once(
          y.narrow(0, first, count), wide(x.narrow(0, first, count)).matmul(matrix.t()), "product");
      expect_rounded_once(
          back.narrow(0, first, count), wide(gradient.narrow(0, first, count)).matmul(matrix),
          "gradient of the rows");
    });
  }
}

TEST_P(GroupedProductTest, WeightGradientsOverwriteOrAddInTheTargetsDtype) {
  for (const auto dtype : kDtypes) {
    for (const auto target_dtype : {dtype, at::kFloat}) {
      if (dtype == at::kDouble && target_dtype != dtype) continue;
      SCOPED_TRACE(c10::str(dtype, " to ", target_dtype));
      const auto x = random({rows(), rows_size()}, dtype);
      const auto gradient = random({rows(), result_size()}, dtype);
      const auto sizes = std::vector<int64_t>{groups(), result_size(), rows_size()};
      const auto before = random(sizes, target_dtype);
      const auto added = before.clone();
      const auto written =
          at::full(sizes, std::numeric_limits<double>::quiet_NaN(), before.options());
      grouped_weight_gradient({gradient, x, ends(), added, /*add=*/true});
      grouped_weight_gradient({gradient, x, ends(), written});
      each_group([&](int64_t group, int64_t first, int64_t count) {
        if (count == 0) {
          EXPECT_TRUE(at::equal(added[group], before[group])) << group;
          EXPECT_TRUE(at::equal(written[group], at::zeros_like(written[group]))) << group;
          return;
        }
        const auto wanted =
            wide(gradient.narrow(0, first, count)).t().matmul(wide(x.narrow(0, first, count)));
        // On a GPU torch rounds to the operands' dtype first.
        const auto rounded = device().is_cpu() ? target_dtype : dtype;
        expect_rounded_once(written[group].to(rounded), wanted, "written");
        expect_close(added[group].to(rounded), wide(before[group]) + wanted, 2, "added");
      });
    }
  }
}

SHERD_ON_DEVICES(GroupedProductTest);

}  // namespace
}  // namespace sherd::testing
