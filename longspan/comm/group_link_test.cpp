// Groups whose tensors are copied to the host and back. Here they are on the host already; what
// arrives is copied from a tensor of its own all the same.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <exception>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "longspan/comm/backend.h"
#include "longspan/comm/group.h"

namespace longspan {
namespace {

// What each collective gives rank `rank` of two.
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

TEST_CASE("group: what goes through the host is what would go without") {
  for (const Link link : {Link::kGloo, Link::kGlooThroughHost}) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<at::Tensor> of_rank[2];
    std::vector<std::string> texts;
    std::exception_ptr errors[2];
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          const Group group =
              group_over(make_gloo_backend(store, rank, 2, 20, "127.0.0.1"), "test", link);
          of_rank[rank] = results(group, rank);
          const std::vector<std::string> told = group.gather_text(rank == 0 ? "a" : "bcd");
          if (rank == 0) texts = told;
          group.shut_down();  // nothing, for Gloo
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
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
