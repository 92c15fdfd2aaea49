#include "longspan/sequence_parallel/ring_pass.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "longspan/testing/method_checks.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

constexpr int64_t kLength = 6;

// Every rank sends its number; rank r adds 100 r + owner to the gradient of each value that it
// sees, except for ranks in `skipped`.
struct Seen {
  std::vector<int> owners;
  std::vector<double> values;
  at::Tensor gradients;
  Traffic window, windows;
};

bool skipped(int rank, int owner) { return rank == 0 || (rank + owner) % 3 == 1; }

std::vector<Seen> travel(int num_windows, int window_size) {
  const int R = num_windows * window_size;
  std::vector<Seen> seen(R);
  const ParallelPlan plan = testing::plan_of(method_named("loongtrain"), R, 1, window_size);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    const Rings rings({mesh.windows, mesh.window});
    Seen& mine = seen[mesh.sequence.rank()];
    const std::vector<at::Tensor> own{at::full({kLength}, rings.rank(), at::kBFloat16)};
    rings.forward(own, [&](const Rings::Tensors& travelling, int owner) {
      mine.owners.push_back(owner);
      mine.values.push_back(travelling[0].sum().item<double>() / kLength);
    });
    mine.window = mesh.window.traffic();
    mine.windows = mesh.windows.traffic();
    mine.gradients = rings.backward(own, [&](const Rings::Tensors&, int owner) -> Rings::Tensors {
      if (skipped(rings.rank(), owner)) return {};
      return {at::full({kLength}, 100.0 * rings.rank() + owner, at::kFloat)};
    })[0];
  });
  return seen;
}

TEST_CASE("ring pass: every block visits every rank, and its gradients come home") {
  for (const auto& [num_windows, window_size] :
       {std::pair{1, 1}, {1, 2}, {2, 1}, {1, 3}, {5, 1}, {2, 2}, {3, 2}, {2, 3}, {4, 2}}) {
    const int R = num_windows * window_size;
    CAPTURE(num_windows);
    CAPTURE(window_size);
    const std::vector<Seen> seen = travel(num_windows, window_size);
    for (int rank = 0; rank < R; ++rank) {
      std::vector<int> owners = seen[rank].owners;
      CHECK(owners[0] == rank);
      for (size_t i = 0; i < owners.size(); ++i) CHECK(seen[rank].values[i] == owners[i]);
      std::sort(owners.begin(), owners.end());
      std::vector<int> all(R);
      double added = 0;
      for (int other = 0; other < R; ++other) {
        all[other] = other;
        if (!skipped(other, rank)) added += 100.0 * other + rank;
      }
      CHECK(owners == all);
      CHECK((seen[rank].gradients.scalar_type() == at::kFloat));
      CHECK(seen[rank].gradients.equal(at::full({kLength}, added, at::kFloat)));
    }
  }
}

TEST_CASE("ring pass: of D W - 1 hops, D - 1 are between windows") {
  for (const Seen& seen : travel(2, 3)) {
    const int64_t hop = kLength * 2;
    CHECK(seen.windows.shift == 1 * hop);
    CHECK(seen.window.shift == 2 * 2 * hop);
  }
}

}  // namespace
}  // namespace longspan
