#include "longspan/sequence_parallel/ring_pass.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>

#include "longspan/testing/method_checks.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

constexpr int64_t kLength = 6;
constexpr size_t kParts = 2;

// Every rank sends its number in the first part, and its number + 16 in the second; rank r adds
// 100 r + owner + part to the gradient of each value that it sees, except for ranks in `skipped`.
struct Seen {
  std::vector<int> owners[kParts], owners_backward[kParts];
  std::vector<double> values[kParts];
  std::vector<at::Tensor> gradients;
  Traffic window, windows;
  std::vector<int64_t> sent, sent_backward;  // bytes before each step, in the order of the steps
};

bool skipped(int rank, int owner) { return rank == 0 || (rank + owner) % 3 == 1; }

std::vector<Seen> travel(int num_windows, int window_size) {
  const int R = num_windows * window_size;
  std::vector<Seen> seen(R);
  const ParallelPlan plan = testing::plan_of(method_named("loongtrain"), R, 1, window_size);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    const Rings rings({mesh.windows, mesh.window});
    Seen& mine = seen[mesh.sequence.rank()];
    Rings::Parts own;
    for (size_t part = 0; part < kParts; ++part) {
      own.push_back({at::full({kLength}, rings.rank() + 16.0 * part, at::kBFloat16)});
    }
    const auto sent = [&] { return mesh.window.traffic().shift + mesh.windows.traffic().shift; };
    rings.forward(own, [&](const Rings::Tensors& travelling, int owner, size_t part) {
      mine.owners[part].push_back(owner);
      mine.values[part].push_back(travelling[0].sum().item<double>() / kLength);
      mine.sent.push_back(sent());
    });
    mine.window = mesh.window.traffic();
    mine.windows = mesh.windows.traffic();
    // The first hop of one of the passes starts before.
    for (const bool starts_before : {false, true}) {
      for (auto& owners : mine.owners_backward) owners.clear();
      mine.sent_backward.clear();
      const int64_t before = sent();
      const auto step = [&](const Rings::Tensors&, int owner, size_t part) -> Rings::Tensors {
        mine.owners_backward[part].push_back(owner);
        mine.sent_backward.push_back(sent() - before);
        if (skipped(rings.rank(), owner)) return {};
        return {at::full({kLength}, 100.0 * rings.rank() + owner + part, at::kFloat)};
      };
      const Rings::Parts gradients = rings.backward(
          own, step, starts_before ? rings.start_backward(own) : std::vector<Pending>{});
      for (size_t part = 0; part < kParts; ++part) {
        if (starts_before) CHECK(gradients[part][0].equal(mine.gradients[part]));
        if (!starts_before) mine.gradients.push_back(gradients[part][0]);
      }
    }
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
      for (size_t part = 0; part < kParts; ++part) {
        std::vector<int> owners = seen[rank].owners[part];
        CHECK(owners[0] == rank);
        CHECK(seen[rank].owners_backward[part].back() == rank);
        for (size_t i = 0; i < owners.size(); ++i) {
          CHECK(seen[rank].values[part][i] == owners[i] + 16.0 * part);
        }
        std::sort(owners.begin(), owners.end());
        std::vector<int> all(R);
        double added = 0;
        for (int other = 0; other < R; ++other) {
          all[other] = other;
          if (!skipped(other, rank)) added += 100.0 * other + rank + part;
        }
        CHECK(owners == all);
        const at::Tensor& gradients = seen[rank].gradients[part];
        CHECK((gradients.scalar_type() == at::kFloat));
        CHECK(gradients.equal(at::full({kLength}, added, at::kFloat)));
      }
    }
  }
}

TEST_CASE("ring pass: of D W - 1 hops, D - 1 are between windows") {
  for (const Seen& seen : travel(2, 3)) {
    const int64_t hop = kParts * kLength * 2;
    CHECK(seen.windows.shift == 1 * hop);
    CHECK(seen.window.shift == 2 * 2 * hop);
  }
}

TEST_CASE("ring pass: a part is passed on, and its gradients leave, before the next part's step") {
  for (const auto& [num_windows, window_size] : {std::pair{1, 3}, {3, 1}}) {
    for (const Seen& seen : travel(num_windows, window_size)) {
      const int64_t part = kLength * 2, gradients = kLength * 4;
      // The own parts leave at once; the second hop of a part begins as the part arrives.
      CHECK(seen.sent == std::vector{2 * part, 2 * part, 3 * part, 4 * part, 4 * part, 4 * part});
      CHECK(seen.sent_backward == std::vector{3 * part, 4 * part + gradients,
                                              4 * part + 2 * gradients, 4 * part + 3 * gradients,
                                              4 * part + 4 * gradients, 4 * part + 4 * gradients});
    }
  }
}

}  // namespace
}  // namespace longspan
