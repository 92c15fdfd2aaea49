#include "longspan/testing/thread_groups.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "longspan/rendezvous/communication_error.h"
#include "longspan/testing/ranks.h"

namespace longspan::testing {
namespace {

TEST_CASE("thread groups: an operation is complete when its last rank has started it") {
  run_ranks(2, [](const Mesh& mesh) {
    // The peer waits only after it has started both operations.
    Pending first = mesh.world.shift({at::full({3}, 1.0 + mesh.world.rank())});
    Pending second = mesh.world.shift({at::full({2}, 5.0 + mesh.world.rank())});
    const bool is_right = second.wait().eq(6.0 - mesh.world.rank()).all().item<bool>() &&
                          first.wait().eq(2.0 - mesh.world.rank()).all().item<bool>();
    if (!is_right) throw std::runtime_error("messages are mixed up");
  });
}

TEST_CASE("thread groups: who waits for a rank that has ended hears of it") {
  CHECK_THROWS_WITH_AS(run_ranks(3,
                                 [](const Mesh& mesh) {
                                   if (mesh.world.rank() != 1) mesh.world.barrier();
                                 }),
                       doctest::Contains("rank 1 has ended"), CommunicationError);
}

TEST_CASE("thread groups: ranks that do different things hear of it") {
  CHECK_THROWS_WITH_AS(run_ranks(2,
                                 [](const Mesh& mesh) {
                                   if (mesh.world.rank() == 0) {
                                     mesh.world.barrier();
                                   } else {
                                     mesh.world.sum_(at::ones({1}));
                                   }
                                 }),
                       doctest::Contains("meets"), CommunicationError);
  CHECK_THROWS_WITH_AS(run_ranks(2,
                                 [](const Mesh& mesh) {
                                   mesh.world
                                       .all_to_all(at::ones({3 + mesh.world.rank()}),
                                                   {1, 2 + mesh.world.rank()}, {1, 1})
                                       .wait();
                                 }),
                       doctest::Contains("another number of rows"), CommunicationError);
}

}  // namespace
}  // namespace longspan::testing
