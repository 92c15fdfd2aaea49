// Groups of GPU tensors, as far as one GPU can test them. NCCL needs a GPU for each rank, so it has
// one rank here. Ranks that share a GPU exchange through the host.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/group.h"
#include "longspan/comm/link.h"
#include "longspan/testing/gpu.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

TEST_CASE("cuda groups: NCCL connects at once and is shut down") {
  if (!testing::has_gpu()) return;
  for (int time = 0; time < 2; ++time) {
    const auto backend =
        load_cuda().make_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1, 60, nullptr, 0);
    std::vector<at::Tensor> x{at::full({1000}, 3.0, at::TensorOptions(at::kCUDA))};
    backend->allreduce(x)->wait();
    CHECK(x[0].sum().item<double>() == 3000);
    CHECK_NOTHROW(backend->shutdown());
  }
}

/// Runs two ranks as threads, each on its own GPU. Returns their errors; "" for none.
std::vector<std::string> on_two_gpus(const std::function<void(const Group& group)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> wrong(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        load_cuda().set_device(rank);
        const Group group = group_over(load_cuda().make_backend(store, rank, 2, 60, nullptr, 0),
                                       "sequence", traits_of(Link::kNccl));
        body(group);
        group.shut_down();
      } catch (const std::exception& error) {
        wrong[rank] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return wrong;
}

// torch returns no work to wait for where no message was coalesced.
TEST_CASE("cuda groups: nothing is sent where all counts are zero, and nobody waits for it") {
  if (!testing::has_gpu()) return;
  if (const int count = load_cuda().num_devices(); count < 2) {
    MESSAGE("not run: two GPUs are needed, of which there are ", count);
    return;
  }
  const std::vector<std::string> wrong = on_two_gpus([](const Group& group) {
    const int peer = 1 - group.rank();
    const auto rows = [&](int64_t count) {
      return at::empty({count, 8}, at::TensorOptions(at::Device(at::kCUDA, group.rank())));
    };
    const auto require_rows = [](const at::Tensor& x, int64_t count) {
      TORCH_CHECK(x.dim() == 2 && x.size(0) == count && x.size(1) == 8, "not ", count, " rows");
    };
    for (const at::Tensor& x : group.shift({rows(0), rows(0)}).wait_all()) require_rows(x, 0);
    TORCH_CHECK(group.shift({}).wait_all().empty());
    TORCH_CHECK(group.exchange({}, {}, /*num_slots=*/2).wait_all().empty());
    require_rows(group.exchange({{peer, 0, rows(0)}}, {{peer, 0, rows(0)}}, 1).wait(), 0);
    require_rows(group.all_to_all(rows(0), {0, 0}, {0, 0}).wait(), 0);
    require_rows(group.all_to_all(rows(0)).wait(), 0);
    require_rows(group.all_gather(rows(0)).wait(), 0);
    require_rows(group.reduce_scatter(rows(0)).wait(), 0);
    group.sum_(rows(0));
    group.broadcast_(rows(0));
    TORCH_CHECK(group.traffic().shift == 0 && group.traffic().all_to_all == 0);

    // An empty tensor beside a full one arrives empty.
    const std::vector<at::Tensor> some = group.shift({rows(0), rows(3)}).wait_all();
    require_rows(some.at(0), 0);
    require_rows(some.at(1), 3);
  });
  for (const std::string& what : wrong) CHECK(what == "");
}

}  // namespace
}  // namespace longspan
