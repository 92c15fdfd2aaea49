#include "longspan/testing/ranks.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/link.h"

namespace longspan::testing {
namespace {

constexpr int64_t kTimeoutSeconds = 20;

}  // namespace

void run_ranks(const ParallelPlan& plan, const std::function<void(const Mesh& mesh)>& body,
               const LinkTraits& link) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::seconds(kTimeoutSeconds));
  std::mutex mutex;
  std::exception_ptr first_error;
  auto note_error = [&] {
    std::lock_guard lock(mutex);
    if (!first_error) first_error = std::current_exception();
  };
  const int num_threads = at::get_num_threads();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        Mesh mesh;
        if (plan.world_size > 1) {
          mesh = make_mesh_over({.store = store,
                                 .rank = rank,
                                 .size = plan.world_size,
                                 .timeout_seconds = kTimeoutSeconds,
                                 .host = "127.0.0.1",
                                 .interfaces = {}},
                                plan, link);
          // A rank that ends at once must not close connections that others are still making.
          if (store->add("connected", 1) == plan.world_size) store->set("all connected", {1});
          store->wait({"all connected"});
        }
        try {
          body(mesh);
        } catch (...) {  // before closing, which may wait for peers that then fail too
          note_error();
        }
      } catch (...) {
        note_error();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  at::set_num_threads(num_threads);
  if (first_error) std::rethrow_exception(first_error);
}

void run_ranks(int num_ranks, const std::function<void(const Mesh& mesh)>& body,
               const LinkTraits& link) {
  ParallelPlan plan;
  plan.world_size = num_ranks;
  plan.data_size = num_ranks;
  run_ranks(plan, body, link);
}

}  // namespace longspan::testing
