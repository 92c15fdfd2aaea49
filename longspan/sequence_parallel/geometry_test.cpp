// The attention of every method follows its geometry: each kernel call attends the pairs of the
// geometry's call, in its order, and the backward attends the same pairs. T: query tokens, S: key
// tokens, N: query heads, M: kv heads, H: elements of a head.
#include "longspan/plan/geometry.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "longspan/registers/method.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/testing/method_plans.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

/// Query head, place of the query in the padded row, kv head, place of the key. Heads and places
/// count from 1; 0 stands for zero tensors.
using Pair = std::tuple<int64_t, int64_t, int64_t, int64_t>;
using Pairs = std::vector<Pair>;

/// Reads the attended pairs from the values of queries and keys, which encode their origin.
class RecordingKernel : public BlockKernel {
 public:
  KernelAbilities abilities() const override {
    return {.name = "A kernel that records", .window = true};
  }

  mutable std::vector<Pairs> forward_calls;
  mutable Pairs backward_pairs;

 protected:
  AttentionResult forward_round(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                                const at::Tensor& v_SMH, const AttentionSpec& spec,
                                const std::vector<Block>& blocks) const override {
    Pairs pairs = read(q_TNH, k_SMH, blocks);
    if (!pairs.empty()) forward_calls.push_back(std::move(pairs));
    return {at::zeros({q_TNH.size(0), q_TNH.size(1), spec.value_dim}, v_SMH.options()),
            at::zeros({q_TNH.size(1), q_TNH.size(0)}, q_TNH.options())};
  }

  AttentionGradients backward_blocks(const AttentionGradientInputs& inputs,
                                     const AttentionSpec& /*spec*/,
                                     const std::vector<Block>& blocks) const override {
    const Pairs pairs = read(inputs.q_TNH, inputs.k_SMH, blocks);
    backward_pairs.insert(backward_pairs.end(), pairs.begin(), pairs.end());
    return {at::zeros_like(inputs.q_TNH), at::zeros_like(inputs.k_SMH),
            at::zeros_like(inputs.v_SMH)};
  }

 private:
  static Pairs read(const at::Tensor& q_TNH, const at::Tensor& k_SMH,
                    const std::vector<Block>& blocks) {
    const at::Tensor queries = q_TNH.to(at::kLong).contiguous(),
                     keys = k_SMH.to(at::kLong).contiguous();
    const int64_t N = queries.size(1), M = keys.size(1), H = queries.size(2);
    const auto at = [H](const at::Tensor& x, int64_t heads, int64_t token, int64_t head) {
      return x.const_data_ptr<int64_t>() + (token * heads + head) * H;
    };
    Pairs pairs;
    for (const Block& block : blocks) {
      for (int64_t q = 0; q < block.q_length; ++q) {
        const KeyRange seen = keys_of(block, q);
        for (int64_t k = seen.begin; k < seen.end; ++k) {
          for (int64_t n = 0; n < N; ++n) {
            const int64_t* query = at(queries, N, block.q_begin + q, n);
            const int64_t* key = at(keys, M, block.k_begin + k, n / (N / M));
            // The last element of a head tells whether all of its slices are here.
            pairs.emplace_back(query[0], query[H - 1], key[0], key[H - 1]);
          }
        }
      }
    }
    std::ranges::sort(pairs);
    return pairs;
  }
};

/// Returns heads whose values encode their origin: the head in the first half of the elements, the
/// token's place in the second half, both from 1.
at::Tensor told(const std::vector<int64_t>& places, int64_t num_heads, int64_t head_dim) {
  const at::Tensor x = at::empty({std::ssize(places), num_heads, head_dim}, at::kDouble);
  x.narrow(2, 0, head_dim / 2)
      .copy_(at::arange(1, num_heads + 1, at::kDouble).view({1, num_heads, 1}));
  const at::Tensor token = at::tensor(at::ArrayRef<int64_t>(places), at::TensorOptions(at::kLong));
  x.narrow(2, head_dim / 2, head_dim - head_dim / 2)
      .copy_(token.to(at::kDouble).add(1).view({-1, 1, 1}));
  return x;
}

constexpr int64_t kMultiple = 3;  // of a rank's tokens, if requested

struct Task {
  ParallelPlan plan;
  AttentionSpec spec;
  Packing row, padded;
};

/// By rank.
struct Recorded {
  std::vector<TokenOrder> orders;  // of the padded row: places of a rank's tokens
  std::vector<TokenOrder> unpadded_orders;
  std::vector<std::vector<Pairs>> forward_calls;
  std::vector<Pairs> backward_pairs;
};

std::vector<Recorded> run_all(const std::vector<Task>& tasks) {
  std::vector<Recorded> recorded(tasks.size());
  // Ranks that form the same groups connect once for all plans.
  std::map<std::vector<int>, std::vector<size_t>> by_groups;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const ParallelPlan& plan = tasks[i].plan;
    recorded[i].orders.resize(plan.sequence_size);
    recorded[i].unpadded_orders.resize(plan.sequence_size);
    recorded[i].forward_calls.resize(plan.sequence_size);
    recorded[i].backward_pairs.resize(plan.sequence_size);
    const bool one_group = (plan.ulysses_size == 1 || plan.ring_size == 1) &&
                           plan.window_size == 1 && plan.num_head_slices == 1;
    by_groups[one_group ? std::vector{plan.sequence_size}
                        : std::vector{plan.sequence_size, plan.ulysses_size, plan.window_size,
                                      plan.num_head_slices}]
        .push_back(i);
  }
  for (const auto& [groups, indices] : by_groups) {
    testing::run_ranks(tasks[indices[0]].plan, [&](Mesh mesh) {
      if (groups.size() == 1) mesh.ring = mesh.ulysses = mesh.windows = mesh.sequence;
      const int rank = mesh.sequence.rank();
      for (const size_t i : indices) {
        const AttentionSpec& spec = tasks[i].spec;
        const RecordingKernel kernel;
        const auto attention = make_attention(tasks[i].plan, mesh, kernel);
        const TokenOrder order = attention->token_order(tasks[i].padded);
        const auto leaf = [&](int64_t num_heads) {
          return told(order.index, num_heads, spec.key_dim).requires_grad_(true);
        };
        const at::Tensor q = leaf(spec.num_heads), k = leaf(spec.num_kv_heads),
                         v = leaf(spec.num_kv_heads);
        const at::Tensor out = attention->attend({q, k, v}, spec, order.packing);
        out.backward(at::ones_like(out));
        recorded[i].orders[rank] = order;
        recorded[i].unpadded_orders[rank] = attention->token_order(tasks[i].row, kMultiple);
        recorded[i].forward_calls[rank] = std::move(kernel.forward_calls);
        std::ranges::sort(kernel.backward_pairs);
        recorded[i].backward_pairs[rank] = std::move(kernel.backward_pairs);
      }
    });
  }
  return recorded;
}

std::vector<int64_t> places_in(const TokenSpan& span, const std::vector<TokenOrder>& orders) {
  std::vector<int64_t> all;
  for (int rank = span.first_rank; rank < span.first_rank + span.num_ranks; ++rank) {
    all.insert(all.end(), orders[rank].index.begin(), orders[rank].index.end());
  }
  std::ranges::sort(all);
  return {all.begin() + span.begin, all.begin() + span.begin + span.length};
}

Pairs pairs_of_call(const AttentionCall& call, const std::vector<TokenOrder>& orders,
                    int64_t num_heads) {
  const auto queries = places_in(call.queries.tokens, orders);
  const auto keys = places_in(call.keys.tokens, orders);
  Pairs pairs;
  for (const Block& block : call.blocks) {
    for (int64_t q = 0; q < block.q_length; ++q) {
      const KeyRange seen = keys_of(block, q);
      for (int64_t k = seen.begin; k < seen.end; ++k) {
        for (int64_t i = 0; i < call.queries.num_heads; ++i) {
          const int64_t head = call.queries.head_begin + i;
          const int64_t kv =
              call.keys.head_begin + i / (call.queries.num_heads / call.keys.num_heads);
          const int64_t key = keys.at(block.k_begin + k);
          if (head >= num_heads) {
            pairs.emplace_back(0, 0, kv + 1, key + 1);  // a dummy head is zero
          } else {
            pairs.emplace_back(head + 1, queries.at(block.q_begin + q) + 1, kv + 1, key + 1);
          }
        }
      }
    }
  }
  std::ranges::sort(pairs);
  return pairs;
}

/// With forks and two-way spans a call has several rounds, one after the other.
Pairs take(const std::vector<Pairs>& calls, size_t& next, size_t count) {
  Pairs taken;
  while (taken.size() < count && next < calls.size()) {
    taken.insert(taken.end(), calls[next].begin(), calls[next].end());
    ++next;
  }
  std::ranges::sort(taken);
  return taken;
}

TEST_CASE("geometry: the attention of every method runs it, call by call") {
  const Packing rows[] = {
      Packing::from_lengths({37}), Packing::from_lengths({13, 1, 22, 9}),
      Packing::from_documents({{11, Fork{5, 9}}, {6}, {3, Fork{1, 2}}, {14, Fork{9, 10}}}),
      Packing::from_documents({{13, Fork{5, 9}, {{1, 5}, {6, 8}}}, {25, {}, {{3, 23}}}})};
  std::vector<Task> tasks;
  for (const testing::MethodPlan& each : testing::plans_of_every_method(5)) {
    for (const Packing& row : rows) {
      tasks.push_back({each.plan, each.spec, row, each.plan.method->padded_row(each.plan, row)});
    }
    // Windows within a rank's share and beyond, each with some of the rows.
    for (const auto& [window, row] :
         {std::pair{4, rows[0]}, {18, rows[0]}, {4, rows[2]}, {4, rows[3]}}) {
      AttentionSpec spec = each.spec;
      spec.window = window;
      tasks.push_back({each.plan, spec, row, each.plan.method->padded_row(each.plan, row)});
    }
  }
  const std::vector<Recorded> recorded = run_all(tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto& [plan, spec, row, padded] = tasks[i];
    const AttentionShape shape(spec);
    for (int rank = 0; rank < plan.sequence_size; ++rank) {
      CAPTURE(fmt::format("{} P={} rank {}, heads {}/{}, {} documents, window {}",
                          describe_method(plan), plan.sequence_size, rank, spec.num_heads,
                          spec.num_kv_heads, padded.num_documents(), spec.window.value_or(0)));
      const TokenOrder order = plan.method->token_order(plan, padded, 1, rank);
      CHECK(order.index == recorded[i].orders[rank].index);
      CHECK(order.packing == padded);
      const TokenOrder unpadded = plan.method->token_order(plan, row, kMultiple, rank);
      CHECK(unpadded.index == recorded[i].unpadded_orders[rank].index);
      CHECK(unpadded.packing == recorded[i].unpadded_orders[rank].packing);
      Pairs all;
      size_t next = 0;
      bool equal = true;
      for (const AttentionStep& step : plan.method->geometry(plan, shape, padded, rank).steps) {
        for (const AttentionCall& call : step.calls) {
          const Pairs pairs = pairs_of_call(call, recorded[i].orders, spec.num_heads);
          equal = equal && take(recorded[i].forward_calls[rank], next, pairs.size()) == pairs;
          all.insert(all.end(), pairs.begin(), pairs.end());
        }
      }
      CHECK(equal);
      CHECK(next == recorded[i].forward_calls[rank].size());
      std::ranges::sort(all);
      CHECK((recorded[i].backward_pairs[rank] == all));
    }
  }
}

}  // namespace
}  // namespace longspan
