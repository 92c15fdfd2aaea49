// Links that connect CPUs. Groups that copy tensors to the host have CPU tensors here; received
// data is copied from a separate tensor all the same.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/comm/link.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

// Returns the results of each collective on rank `rank` of two.
std::vector<at::Tensor> results(const Group& group, int rank) {
  const int other = 1 - rank;
  const auto filled = [](at::IntArrayRef shape, double value) {
    return at::full(shape, value, at::kFloat);
  };
  const at::Tensor rows = at::arange(4, at::kFloat).view({4, 1}) + 10 * rank;
  std::vector<at::Tensor> all{group.all_to_all(rows).wait(), group.all_gather(rows).wait(),
                              group.reduce_scatter(rows).wait()};
  all.push_back(group.shift({rows, filled({0, 3}, 0)}).wait_all()[0]);
  const at::Tensor received = filled({3}, -1);
  group.exchange({{other, 0, filled({3}, 7 + rank)}}, {{other, 0, received}}, 1).wait_all();
  all.push_back(received);
  at::Tensor sum = filled({2}, 1 + rank), bf16 = filled({2}, 1 + rank).to(at::kBFloat16);
  group.sum_(sum);
  group.sum_(bf16);
  at::Tensor first = filled({2}, 5 + rank);
  group.broadcast_(first);
  all.insert(all.end(), {sum, bf16.to(at::kFloat), first});
  return all;
}

TEST_CASE("group: the same arrives by Gloo, through the host, and between threads") {
  for (const LinkTraits* link :
       {&traits_of(Link::kGloo), &traits_of(Link::kGlooThroughHost), &testing::thread_link()}) {
    std::vector<at::Tensor> of_rank[2];
    std::vector<std::string> texts;
    testing::run_ranks(
        2,
        [&](const Mesh& mesh) {
          const int rank = mesh.world.rank();
          of_rank[rank] = results(mesh.world, rank);
          const std::vector<std::string> told = mesh.world.gather_text(rank == 0 ? "a" : "bcd");
          if (rank == 0) texts = told;
          mesh.world.shut_down();  // no-op for Gloo
        },
        *link);
    const auto column = [](std::vector<float> values) {
      const auto size = static_cast<int64_t>(values.size());
      return at::tensor(values).view({size, 1});
    };
    CHECK(texts == std::vector<std::string>{"a", "bcd"});
    CHECK(of_rank[0][0].equal(column({0, 1, 10, 11})));
    CHECK(of_rank[1][0].equal(column({2, 3, 12, 13})));
    CHECK(of_rank[0][2].equal(column({10, 12})));
    CHECK(of_rank[1][2].equal(column({14, 16})));
    CHECK(of_rank[0][3].equal(column({10, 11, 12, 13})));
    CHECK(of_rank[1][3].equal(column({0, 1, 2, 3})));
    CHECK(of_rank[0][4].equal(at::full({3}, 8.0f)));
    CHECK(of_rank[1][4].equal(at::full({3}, 7.0f)));
    for (const auto& all : of_rank) {
      CHECK(all[1].equal(column({0, 1, 2, 3, 10, 11, 12, 13})));
      CHECK(all[5].equal(at::full({2}, 3.0f)));
      CHECK(all[6].equal(at::full({2}, 3.0f)));
      CHECK(all[7].equal(at::full({2}, 5.0f)));
    }
  }
}

}  // namespace
}  // namespace longspan
