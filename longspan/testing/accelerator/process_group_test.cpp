// Groups of the simulated accelerator: messages arrive, and errors that NCCL would not report are
// found.
#include "longspan/testing/accelerator/process_group.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/group.h"
#include "longspan/comm/link.h"
#include "longspan/testing/accelerator/accelerator.h"
#include "longspan/testing/accelerator/streams_for_tests.h"

namespace longspan::testing::accelerator {
namespace {

constexpr int64_t kNumbers = 1024;

/// Runs ranks as threads, each on the device of its number. Returns the first fault of a rank; the
/// others then lose their peer.
std::optional<FaultError> run_ranks(int num_ranks,
                                    const std::function<void(c10d::Backend&, int rank)>& body) {
  install();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::optional<FaultError> fault;
  std::exception_ptr other;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      guard().setDevice(device(rank));
      try {
        const auto group = make_group(
            make_gloo_backend(store, rank, num_ranks, /*timeout_seconds=*/2, "127.0.0.1"), store);
        group->barrier()->wait();
        body(*group, rank);
        group->shutdown();
      } catch (const FaultError& error) {
        const std::lock_guard lock(mutex);
        if (!fault) fault = error;
      } catch (...) {
        const std::lock_guard lock(mutex);
        other = std::current_exception();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (!fault && other) std::rethrow_exception(other);
  for (int rank = 0; rank < num_ranks; ++rank) {
    try {
      guard().synchronizeDevice(static_cast<c10::DeviceIndex>(rank));
    } catch (const std::exception&) {  // a collective whose peer has left
    }
  }
  return fault;
}

at::TensorOptions of_rank(int rank) { return on_device(at::kFloat, rank); }

TEST_CASE("accelerator: collectives bring what they should, and the host waits for none") {
  for (const int num_ranks : {2, 3}) {
    CAPTURE(num_ranks);
    std::vector<std::string> wrong(static_cast<size_t>(num_ranks));
    const auto fault = run_ranks(num_ranks, [&](c10d::Backend& group, int rank) {
      const auto check = [&](const char* what, const at::Tensor& actual,
                             const at::Tensor& expected) {
        if (!actual.cpu().equal(expected)) wrong[static_cast<size_t>(rank)] += what;
      };
      const at::Tensor ranks = at::arange(num_ranks, at::kFloat);

      std::vector<at::Tensor> sum{at::full({kNumbers}, rank + 1, of_rank(rank))};
      group.allreduce(sum)->wait();
      check("allreduce", sum[0] * 2, at::full({kNumbers}, num_ranks * (num_ranks + 1.0)));

      at::Tensor mine = at::full({2}, rank, of_rank(rank)),
                 all = at::empty({2 * num_ranks}, of_rank(rank));
      group._allgather_base(all, mine)->wait();
      check("all_gather", all, ranks.repeat_interleave(2));

      at::Tensor parts = at::arange(num_ranks, of_rank(rank)) + 10 * rank,
                 exchanged = at::empty({num_ranks}, of_rank(rank));
      std::vector<int64_t> rows(static_cast<size_t>(num_ranks), 1);
      group.alltoall_base(exchanged, parts, rows, rows)->wait();
      check("all_to_all", exchanged, ranks * 10 + rank);

      // A sum in fp32 by the order of a ring: 1 is lost beside 2^24, unless it comes last.
      at::Tensor share = at::empty({1}, of_rank(rank)),
                 large = at::full({num_ranks}, rank == 0 ? 16777216.0 : 1.0, of_rank(rank));
      group._reduce_scatter_base(share, large)->wait();
      check("reduce_scatter", share,
            at::full({1}, 16777216.0F + static_cast<float>(num_ranks == 3 && rank == 0 ? 2 : 0)));

      std::vector<at::Tensor> from_last{at::full({3}, rank, of_rank(rank))};
      c10d::BroadcastOptions options;
      options.rootRank = num_ranks - 1;
      group.broadcast(from_last, options)->wait();
      check("broadcast", from_last[0], at::full({3}, num_ranks - 1.0));

      // Two messages to the next rank, matched in order.
      std::vector<at::Tensor> first{mine}, second{mine * 2}, got{at::empty({2}, of_rank(rank))},
          got_second{at::empty({2}, of_rank(rank))};
      const int next = (rank + 1) % num_ranks, last = (rank + num_ranks - 1) % num_ranks;
      group.startCoalescing();
      group.send(first, next, 0);
      group.send(second, next, 0);
      group.recv(got, last, 0);
      group.recv(got_second, last, 0);
      group.endCoalescing()->wait();
      check("messages", got_second[0] - got[0], at::full({2}, static_cast<float>(last)));

      group.startCoalescing();
      if (group.endCoalescing()) wrong[static_cast<size_t>(rank)] += "no messages";
    });
    if (fault) FAIL_CHECK(std::string(fault->what()));
    for (const std::string& what : wrong) CHECK(what.empty());
  }
  int64_t waits = -1;
  const auto fault = run_ranks(2, [&](c10d::Backend& group, int rank) {
    std::vector<at::Tensor> sum{at::ones({kNumbers}, of_rank(rank))};
    if (rank == 0) Machine::get().restart_counters();
    group.allreduce(sum)->wait();
    sum[0].mul_(2);
    if (rank != 0) return;
    const Counters counters = Machine::get().counters();
    const auto barrier = counters.host_syncs_of.find("barrier");  // maybe the other rank's
    waits = counters.host_syncs - (barrier == counters.host_syncs_of.end() ? 0 : barrier->second);
  });
  CHECK(!fault.has_value());
  CHECK(waits == 0);
}

TEST_CASE("accelerator: groups sum by NCCL's reduce-scatter in fp32, or exchange") {
  for (const Link link : {Link::kNccl, Link::kNcclByExchange}) {
    const bool scatters = link == Link::kNccl;
    CAPTURE(scatters);
    std::vector<std::string> wrong(3);
    const auto fault = run_ranks(3, [&](c10d::Backend& backend, int rank) {
      const Group group =
          group_over(c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(&backend),
                     "shard", traits_of(link));
      const auto check = [&](const char* what, bool right) {
        if (!right) wrong[static_cast<size_t>(rank)] += what;
      };
      // In bf16, 1 is lost beside 256.
      const at::Tensor x = at::full({6, 2}, rank == 0 ? 256.0 : 1.0, of_rank(rank));
      const at::Tensor sum = group.reduce_scatter(x.to(at::kBFloat16)).wait();
      check("bf16", sum.scalar_type() == at::kBFloat16 &&
                        sum.cpu().equal(at::full({2, 2}, 258.0, at::kBFloat16)));
      check("bytes", group.traffic().reduce_scatter == 2 * 4 * (scatters ? 4 : 2));
      check("fp32", group.reduce_scatter(x).wait().cpu().equal(at::full({2, 2}, 258.0)));
      check("empty", group.reduce_scatter(x.narrow(0, 0, 0)).wait().numel() == 0);
      check("other bytes", group.traffic().all_to_all == 0);
      check("in place", group.scatters_in_place(at::kFloat) == scatters &&
                            !group.scatters_in_place(at::kBFloat16));
      group.shut_down();
    });
    if (fault) FAIL_CHECK(std::string(fault->what()));
    for (const std::string& what : wrong) CHECK(what == "");
  }
}

// The current stream waits for the collective, so its pool may reuse the memory, while the carrier
// waits for the late rank and has not sent it yet.
TEST_CASE("accelerator: what is freed behind a wait arrives all the same") {
  constexpr int64_t kMany = int64_t{1} << 20;
  bool right[2] = {};
  const auto fault = run_ranks(2, [&](c10d::Backend& group, int rank) {
    at::Tensor x = at::full({kMany}, rank + 1, of_rank(rank)),
               all = at::empty({2 * kMany}, of_rank(rank));
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    group._allgather_base(all, x)->wait();
    // As sharded parameters do it: the tensor stays, and its memory is freed.
    x.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, x.device()));
    right[rank] = all.cpu().equal(at::cat({at::full({kMany}, 1.0F), at::full({kMany}, 2.0F)}));
  });
  CHECK(!fault.has_value());
  CHECK(right[0]);
  CHECK(right[1]);
}

/// run(group, rank, true) has the fault on rank 0, run(group, rank, false) does not.
struct PlantedCollective {
  std::string name;
  Fault fault;
  std::function<void(c10d::Backend&, int rank, bool faulty)> run;
};

TEST_CASE("accelerator: each planted fault of a collective is found, and nothing else is") {
  const std::vector<PlantedCollective> planted{
      {"a result is read before the wait", Fault::kRace,
       [](c10d::Backend& group, int rank, bool faulty) {
         std::vector<at::Tensor> x{at::ones({kNumbers}, of_rank(rank))};
         const auto work = group.allreduce(x);
         if (!faulty) work->wait();
         x[0].sum();
         work->wait();
       }},
      {"an input is overwritten before the wait", Fault::kRace,
       [](c10d::Backend& group, int rank, bool faulty) {
         at::Tensor x = at::ones({kNumbers}, of_rank(rank)),
                    all = at::empty({2 * kNumbers}, of_rank(rank));
         const auto work = group._allgather_base(all, x);
         if (!faulty) work->wait();
         x.zero_();
         work->wait();
       }},
      {"a collective takes what another stream than the current one makes", Fault::kRace,
       [](c10d::Backend& group, int rank, bool faulty) {
         const c10::Stream side = guard().getStreamFromGlobalPool(device(rank));
         const c10::Stream current = guard().getStream(device(rank));
         std::vector<at::Tensor> x{on(side, [&] { return at::ones({kNumbers}, of_rank(rank)); })};
         if (!faulty) wait(current, side);
         group.allreduce(x)->wait();
         wait(side, current);
       }},
      {"another stream than the one that waited reads the result", Fault::kRace,
       [](c10d::Backend& group, int rank, bool faulty) {
         std::vector<at::Tensor> x{at::ones({kNumbers}, of_rank(rank))};
         const c10::Stream side = guard().getStreamFromGlobalPool(device(rank));
         wait(side, guard().getStream(device(rank)));
         group.allreduce(x)->wait();
         if (!faulty) wait(side, guard().getStream(device(rank)));
         on(side, [&] { return x[0].sum(); });
         wait(guard().getStream(device(rank)), side);
       }},
      {"a collective gets a tensor of the host", Fault::kHostTensor,
       [](c10d::Backend& group, int rank, bool faulty) {
         std::vector<at::Tensor> x{
             at::ones({kNumbers}, faulty && rank == 0 ? at::TensorOptions() : of_rank(rank))};
         group.allreduce(x)->wait();
       }},
      {"a collective gets a tensor of another device", Fault::kWrongDevice,
       [](c10d::Backend& group, int rank, bool faulty) {
         std::vector<at::Tensor> x{at::ones({kNumbers}, of_rank(faulty && rank == 0 ? 2 : rank))};
         group.allreduce(x)->wait();
       }},
      {"a thread starts a collective before it has chosen its device", Fault::kWrongDevice,
       [](c10d::Backend& group, int rank, bool faulty) {
         std::vector<at::Tensor> x{at::ones({kNumbers}, of_rank(rank))};
         guard().synchronizeDevice(static_cast<c10::DeviceIndex>(rank));
         std::exception_ptr error;
         std::thread([&] {
           try {
             if (!faulty) guard().setDevice(device(rank));
             group.allreduce(x)->wait();
           } catch (...) {
             error = std::current_exception();
           }
         }).join();
         if (error) std::rethrow_exception(error);
       }},
      {"a collective gets a transposed tensor", Fault::kNotContiguous,
       [](c10d::Backend& group, int rank, bool faulty) {
         const at::Tensor matrix = at::ones({8, 4}, of_rank(rank));
         std::vector<at::Tensor> x{faulty && rank == 0 ? matrix.t() : matrix};
         group.allreduce(x)->wait();
       }},
      {"ranks start two collectives in another order", Fault::kCollectives,
       [](c10d::Backend& group, int rank, bool faulty) {
         std::vector<at::Tensor> one{at::ones({kNumbers}, of_rank(rank))},
             other{at::ones({kNumbers / 2}, of_rank(rank))};
         const bool swapped = faulty && rank == 0;
         group.allreduce(swapped ? other : one)->wait();
         group.allreduce(swapped ? one : other)->wait();
       }},
  };
  for (const PlantedCollective& one : planted) {
    CAPTURE(one.name);
    const auto run = [&](bool faulty) {
      return run_ranks(2, [&](c10d::Backend& group, int rank) { one.run(group, rank, faulty); });
    };
    const std::optional<FaultError> none = run(false);
    if (none) FAIL(std::string(none->what()));
    const std::optional<FaultError> found = run(true);
    REQUIRE(found.has_value());
    const std::string text = found->what();
    CAPTURE(text);
    CHECK(found->fault == one.fault);
  }
}

}  // namespace
}  // namespace longspan::testing::accelerator
