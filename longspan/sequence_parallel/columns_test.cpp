// All columns of a row are cut like its tokens, under the token order of every method.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "longspan/registers/method.h"
#include "longspan/rows/batch.h"
#include "longspan/rows/example.h"
#include "longspan/rows/shared_prompt.h"
#include "longspan/testing/method_plans.h"

namespace longspan {
namespace {

/// Every element differs from all others and from padding.
Sample sample_of(const std::vector<int32_t>& tokens, int64_t number, bool with_axes) {
  const auto T = std::ssize(tokens);
  Sample sample{tokens, tokens};
  const at::Tensor count = at::arange(1, T + 1, at::kLong).add(1000 * number);
  sample.columns["log-probability"] = {count.to(at::kFloat).mul(-0.5), 7.25};
  sample.columns["image place"] = {at::stack({count, count.mul(2), count.mul(3)}, 1), -1};
  sample.columns["is answer"] = {at::ones({T}, at::kBool), 0};
  if (with_axes) sample.positions_AT = at::stack({count.sub(1), count.mul(5)});
  return sample;
}

/// Several documents, some with forks.
Batch row_of(bool forked, bool with_axes) {
  Example pair, other;
  pair.documents = {sample_of({1, 2, 3, 4, 5, 6, 7}, 1, with_axes),
                    sample_of({1, 2, 3, 4, 8, 9}, 1, with_axes)};
  for (Sample& sample : pair.documents) {
    for (int i = 0; i < 4; ++i) sample.labels[i] = kIgnoreLabel;
  }
  other.documents = {sample_of({11, 12, 13}, 2, false), sample_of({14}, 3, with_axes)};
  return forked ? collate_shared({&pair, &other}, SharedTokens::kWithoutLabels)
                : collate_examples({&pair, &other});
}

/// The tensors of a row with a token dimension: that dimension, and the padding value.
struct Part {
  std::string name;
  at::Tensor x;
  int64_t dim;
  double padding;
};

std::vector<Part> parts_of(const Batch& row) {
  std::vector<Part> parts{{"tokens", row.tokens_T, 0, 0},
                          {"labels", row.labels_T, 0, kIgnoreLabel},
                          {"positions", row.positions_T, row.positions_T.dim() - 1, 0},
                          {"documents", row.documents_T, 0, -1}};
  if (row.places_T.defined()) parts.push_back({"places", row.places_T, 0, 0});
  for (const auto& [name, column] : row.columns) {
    parts.push_back({name, column.values, 0, column.padding});
  }
  return parts;
}

TEST_CASE("columns: shares of every token order, put together again, are the row") {
  for (const bool forked : {false, true}) {
    for (const bool with_axes : {false, true}) {
      const Batch row = row_of(forked, with_axes);
      REQUIRE(row.packing.has_forks() == forked);
      REQUIRE(row.positions_T.dim() == (with_axes ? 2 : 1));
      const std::vector<Part> whole = parts_of(row);
      for (const auto& [plan, spec] : testing::plans_of_every_method(4)) {
        if (spec.num_heads != 6 || plan.head_waves > 1) continue;
        CAPTURE(fmt::format("{} P={} forked {} axes {}", describe_method(plan), plan.sequence_size,
                            forked, with_axes));
        std::vector<at::Tensor> together;
        for (const Part& part : whole) together.push_back(at::zeros_like(part.x));
        int64_t num_padding = 0;
        for (int rank = 0; rank < plan.sequence_size; ++rank) {
          const TokenOrder order = plan.method->token_order(plan, row.packing, 1, rank);
          const Batch share = shard(row, order);
          CHECK(share.packing == order.packing);
          const std::vector<Part> parts = parts_of(share);
          REQUIRE(parts.size() == whole.size());
          for (size_t i = 0; i < parts.size(); ++i) {
            const auto& [name, x, dim, padding] = parts[i];
            CAPTURE(name);
            CHECK(name == whole[i].name);
            CHECK((x.scalar_type() == whole[i].x.scalar_type()));
            CHECK(padding == whole[i].padding);
            REQUIRE(x.size(dim) == std::ssize(order.index));
            for (int64_t token = 0; token < std::ssize(order.index); ++token) {
              const at::Tensor here = x.select(dim, token);
              if (order.index[token] < 0) {
                CHECK(here.eq(padding).all().item<bool>());
                num_padding += 1;
              } else {
                together[i].select(dim, order.index[token]).copy_(here);
              }
            }
          }
        }
        CHECK(num_padding ==
              std::ssize(whole) * (plan.method->padded_row(plan, row.packing).num_tokens() -
                                   row.packing.num_tokens()));
        for (size_t i = 0; i < whole.size(); ++i) {
          CAPTURE(whole[i].name);
          CHECK(together[i].equal(whole[i].x));
        }
      }
    }
  }
}

}  // namespace
}  // namespace longspan
