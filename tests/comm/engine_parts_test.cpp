// SPDX-License-Identifier: Apache-2.0
// The parts of the MPI engine that need no other rank.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/engine/lanes.h"
#include "comm/engine/submissions.h"
#include "comm/open_connections.h"

namespace sherd {
namespace {

using std::chrono::milliseconds;

class NamedOperation final : public Operation {
 public:
  using Operation::Operation;
  void start(Transport&) override {}
  bool advance(Transport&) override { return true; }
  std::vector<int64_t> waits_for() const override { return {}; }
};

std::shared_ptr<Operation> named(const std::string& name) {
  return std::make_shared<NamedOperation>("[comm.mpi] rank 0, " + name + " (0 of 2): ");
}

std::string error_of(Operation& operation) {
  try {
    operation.wait();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// Visits the entries that may run, and removes those of `done_lane`.
std::vector<int64_t> visit(Lanes& lanes, int done_lane) {
  std::vector<int64_t> visited;
  lanes.remove_done([&](LaneEntry& entry) {
    visited.push_back(entry.lane * 10 + entry.number);
    return entry.lane == done_lane;
  });
  return visited;
}

TEST(Lanes, RunTheFirstEntryOfEachLaneAndAllWithoutOne) {
  Lanes lanes;
  for (const int lane : {3, 3, 5, Lanes::kNone, Lanes::kNone}) {
    static int64_t number = 0;
    lanes.add({lane, named("send"), milliseconds(1), number++});
  }
  EXPECT_EQ(visit(lanes, 3), (std::vector<int64_t>{30, 52, -7, -6}));
  EXPECT_EQ(visit(lanes, 3), (std::vector<int64_t>{31, 52, -7, -6}));
  EXPECT_EQ(visit(lanes, Lanes::kNone), (std::vector<int64_t>{52, -7, -6}));
  EXPECT_EQ(visit(lanes, 5), (std::vector<int64_t>{52}));
  EXPECT_TRUE(lanes.empty());
}

TEST(Lanes, DescribeTheOperationsUnderWayOrElseTheLast) {
  Lanes lanes;
  EXPECT_EQ(lanes.describe(), "has made no operation yet");
  lanes.add({3, named("barrier on 'dp'"), milliseconds(1)});
  EXPECT_EQ(lanes.describe(), "has made no operation yet") << "it is not started";
  lanes.remove_done([](LaneEntry& entry) {
    entry.begin = Operation::Clock::now();
    return false;
  });
  EXPECT_TRUE(lanes.describe().starts_with("waits in barrier on 'dp' (0 of 2) for "));
  visit(lanes, 3);
  EXPECT_TRUE(lanes.describe().starts_with("is in no operation; its last, barrier on 'dp'"));
}

TEST(Lanes, FailAllOperationsWithTheirOwnScope) {
  Lanes lanes;
  const auto first = named("first"), second = named("second"), third = named("third");
  lanes.add({3, first, milliseconds(1)});
  lanes.add({3, second, milliseconds(1)});
  lanes.add({Lanes::kNone, third, milliseconds(1)});
  const auto failed = lanes.fail_all(first->scope() + "broke");
  EXPECT_EQ(failed, (std::vector<std::shared_ptr<Operation>>{first, second, third}));
  EXPECT_TRUE(lanes.empty());
  EXPECT_EQ(error_of(*first), first->scope() + "broke");
  EXPECT_EQ(error_of(*third), third->scope() + first->scope() + "broke");
}

TEST(Submissions, NumberTheOperationsOfEachLane) {
  Submissions submissions;
  EXPECT_FALSE(submissions.any());
  for (const int lane : {3, 5, 3}) submissions.add(lane, named("gather"), milliseconds(1));
  EXPECT_TRUE(submissions.any());
  Lanes lanes;
  EXPECT_FALSE(submissions.take(lanes).stopped);
  EXPECT_FALSE(submissions.any());
  EXPECT_FALSE(submissions.wait(milliseconds(1)));
  EXPECT_EQ(visit(lanes, 3), (std::vector<int64_t>{30, 50}));
  EXPECT_EQ(visit(lanes, 3), (std::vector<int64_t>{31, 50}));
  EXPECT_EQ(submissions.counts(), (LaneCounts{{3, 2}, {5, 1}}));
}

TEST(Submissions, EndWithAnErrorAfterStop) {
  Submissions submissions;
  const auto before = named("before"), after = named("after");
  submissions.add(3, before, milliseconds(1));
  submissions.stop(/*by_exception=*/true);
  submissions.add(3, after, milliseconds(1));
  EXPECT_EQ(error_of(*after), after->scope() + "the world is closed");
  Lanes lanes;
  const auto end = submissions.take(lanes);
  EXPECT_TRUE(end.stopped && end.by_exception);
  EXPECT_FALSE(before->done());
  EXPECT_FALSE(lanes.empty());
  EXPECT_TRUE(submissions.any()) << "the engine's loop must look again until it has ended";
  EXPECT_EQ(submissions.counts(), (LaneCounts{{3, 1}}));
}

TEST(OpenConnections, AreLeftNewestFirst) {
  static std::vector<int> left;
  struct Numbered final : Connection {
    explicit Numbered(int given) : number(given) {}
    void leave() noexcept override { left.push_back(number); }
    int number;
  };
  const auto first = std::make_shared<Numbered>(1), second = std::make_shared<Numbered>(2);
  for (const auto& each : {first, std::make_shared<Numbered>(0), second}) leave_at_exit(each);
  leave_all();
  EXPECT_EQ(left, (std::vector<int>{2, 1})) << "the one between was destroyed";
}

}  // namespace
}  // namespace sherd
