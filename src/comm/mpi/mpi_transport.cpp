// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Exception.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine/short_turns.h"
#include "comm/launch.h"
#include "comm/mpi/arrivals.h"
#include "comm/mpi/mpi_session.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/time_text.h"

namespace sherd {
namespace {

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return text.data();
}

void check(int code, const char* call) {
  TORCH_CHECK(code == MPI_SUCCESS, call, " failed: ", error_text(code));
}

class MpiRequest final : public Transport::Request {
 public:
  static constexpr int64_t kAnyLength = -1;

  /// `expected`: bytes that a receive must bring, or kAnyLength.
  explicit MpiRequest(int64_t expected) : expected_(expected) {}
  ~MpiRequest() override {
    if (handle == MPI_REQUEST_NULL) return;
    MPI_Cancel(&handle);
    MPI_Request_free(&handle);
  }
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  bool test() override {
    int arrived = 0;
    MPI_Status status;
    const int code = MPI_Test(&handle, &arrived, &status);
    int kind = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
    TORCH_CHECK(
        kind != MPI_ERR_TRUNCATE, "rank ", status.MPI_SOURCE, " sent more than the ", expected_,
        " bytes expected: the ranks passed tensors of different sizes, or made different calls");
    check(code, "MPI_Test");
    if (arrived == 0) return false;
    if (expected_ != kAnyLength) {
      int bytes = 0;
      check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
      TORCH_CHECK(
          bytes == expected_, "rank ", status.MPI_SOURCE, " sent ", bytes, " bytes where ",
          expected_,
          " were expected: the ranks passed tensors of different sizes, or made different calls");
    }
    return true;
  }

  MPI_Request handle = MPI_REQUEST_NULL;

 private:
  int64_t expected_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(MPI_Comm comm, bool owns_mpi) : comm_(comm), owns_mpi_(owns_mpi) {
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int value = 0;
    check(MPI_Comm_rank(comm_, &value), "MPI_Comm_rank");
    rank_ = value;
    check(MPI_Comm_size(comm_, &value), "MPI_Comm_size");
    size_ = value;
    gather_hosts();
  }

  std::string name() const override { return "mpi"; }
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::string host_of(int64_t rank) const override {
    return hosts_.empty() ? "" : hosts_[static_cast<size_t>(rank)];
  }

  std::unique_ptr<Request> send(int64_t peer, int tag, const void* data, int64_t bytes) override {
    auto request = std::make_unique<MpiRequest>(MpiRequest::kAnyLength);
    check(
        MPI_Isend(
            data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(peer), tag, comm_,
            &request->handle),
        "MPI_Isend");
    return request;
  }

  std::unique_ptr<Request> receive(int64_t peer, int tag, void* data, int64_t bytes) override {
    auto request = std::make_unique<MpiRequest>(bytes);
    check(
        MPI_Irecv(
            data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(peer), tag, comm_,
            &request->handle),
        "MPI_Irecv");
    return request;
  }

  std::unique_ptr<Request> receive_any(int tag, void* data, int64_t bytes) override {
    auto request = std::make_unique<MpiRequest>(MpiRequest::kAnyLength);
    check(
        MPI_Irecv(
            data, static_cast<int>(bytes), MPI_BYTE, MPI_ANY_SOURCE, tag, comm_, &request->handle),
        "MPI_Irecv");
    return request;
  }

  void finish() override {
    MPI_Comm_free(&comm_);
    if (!owns_mpi_) return;
    MPI_Finalize();
    // Open MPI's mpirun (4.0 and 4.1; its issue 7833) may see the process end before it takes note
    // of this, about once in a thousand runs, and then calls a run that went well a failure.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

 private:
  /// Blocks until all ranks do it.
  void gather_hosts() {
    constexpr int kLongest = 64;  // Linux allows no longer names
    std::array<char, kLongest> own{};
    gethostname(own.data(), own.size() - 1);
    std::vector<char> all(static_cast<size_t>(size_) * kLongest);
    check(
        MPI_Allgather(own.data(), kLongest, MPI_CHAR, all.data(), kLongest, MPI_CHAR, comm_),
        "MPI_Allgather");
    bool several = false;
    for (int64_t rank = 0; rank < size_; ++rank) {
      hosts_.emplace_back(all.data() + rank * kLongest);
      several = several || hosts_.back() != hosts_.front();
    }
    if (!several) hosts_.clear();
  }

  MPI_Comm comm_;
  bool owns_mpi_;
  int64_t rank_ = 0;
  int64_t size_ = 1;
  std::vector<std::string> hosts_;  // by rank; none if there is only one
};

/// Starts MPI unless the program has, and makes a communicator of our own. Blocks until all ranks
/// have arrived.
std::unique_ptr<Transport> start_mpi() {
  int started = 0;
  int finished = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&finished);
  TORCH_CHECK(
      finished == 0,
      "MPI was finished before, and can't be started twice in one process: keep the ",
      "first World alive");
  int level = 0;
  if (started == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  } else {
    check(MPI_Query_thread(&level), "MPI_Query_thread");
  }
  TORCH_CHECK(
      level == MPI_THREAD_MULTIPLE, "MPI grants thread level ", level, " of the ",
      MPI_THREAD_MULTIPLE, " needed: start it with MPI_THREAD_MULTIPLE");
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  return std::make_unique<MpiTransport>(comm, started == 0);
}

}  // namespace

std::unique_ptr<Transport> mpi_transport(std::chrono::milliseconds timeout) {
  const auto launch = launch_from_environment();
  const Arrivals arrivals(launch);
  ask_for_short_turns();
  static std::atomic<bool> under_way{false};
  TORCH_CHECK(
      !under_way.exchange(true), "[comm.mpi] rank ", launch.rank, " of ", launch.size,
      ", start: an earlier start is still waiting for ranks that have not arrived; MPI can't be ",
      "started again in this process");
  // MPI_Init waits for all ranks without a limit, so it runs on a thread of its own, which is left
  // behind when the time is up.
  std::promise<std::unique_ptr<Transport>> promise;
  auto started = promise.get_future();
  std::thread([promise = std::move(promise)]() mutable {
    try {
      promise.set_value(start_mpi());
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  TORCH_CHECK(
      started.wait_for(timeout) == std::future_status::ready, "[comm.mpi] rank ", launch.rank,
      " of ", launch.size, ", start: after ", in_seconds(timeout), " ", arrivals.missing_text());
  under_way = false;
  auto transport = started.get();
  TORCH_CHECK(
      transport->size() == launch.size && transport->rank() == launch.rank,
      "[comm.mpi] the launcher says rank ", launch.rank, " of ", launch.size,
      ", the MPI library says rank ", transport->rank(), " of ", transport->size(),
      ": they are not of one installation; use the mpirun that belongs to the ",
      "library (.venv/bin/mpirun)");
  return transport;
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
  int length = 0;
  MPI_Get_library_version(version.data(), &length);
  const std::string text = version.data();
  return text.substr(0, text.find(','));
}

}  // namespace sherd
