#include <doctest/doctest.h>

#include <algorithm>

#include <ATen/ATen.h>

#include "longspan/attention/attention.h"
#include "longspan/attention/saved_attention.h"
#include "longspan/plan/geometry.h"
#include "longspan/rows/padding.h"
#include "longspan/sequence_parallel/sequence_parallel.h"
#include "longspan/sequence_parallel/zigzag_order.h"
#include "longspan/testing/method_checks.h"
#include "longspan/testing/ranks.h"

namespace longspan {
namespace {

const Method* const kMethod = method_named("zigzag-ring");

testing::TrafficFormula formula_of(int R) {
  return [R](int64_t T, int64_t, int64_t M, int64_t H, int64_t bytes, int64_t grad_bytes) {
    return Traffic{.shift = (R - 1) * T * 2 * M * H * (2 * bytes + grad_bytes)};
  };
}

TEST_CASE("zigzag ring: undistributed attention in fp64, for many numbers of ranks") {
  for (const int R : {2, 3, 5, 6})
    testing::check_solves(testing::plan_of(kMethod, R), formula_of(R));
}

TEST_CASE("zigzag ring: replayed with the same bits") {
  testing::check_replays(testing::plan_of(kMethod, 3), formula_of(3));
}

TEST_CASE("zigzag ring: a recomputation starts the first hop of the backward") {
  const ParallelPlan plan = testing::plan_of(kMethod, 2);
  testing::run_ranks(plan, [&](const Mesh& mesh) {
    const auto attention = make_attention(plan, mesh, cpu_block_kernel());
    const Packing row = Packing::single(8);
    const AttentionSpec spec = plain_attention(2, 2, 4);
    const AttentionInputs inputs{at::randn({4, 2, 4}).requires_grad_(),
                                 at::randn({4, 2, 4}).requires_grad_(),
                                 at::randn({4, 2, 4}).requires_grad_(),
                                 {}};
    const int64_t hop = 2 * 4 * 2 * 4 * 4;  // k and v in fp32
    SavedAttention saved{.results = {}, .prefetches = true, .started_by_replay = {}};
    const at::Tensor out = attention->attend(inputs, spec, row, AttentionCheckpoint::saving(saved));
    CHECK(mesh.ring.traffic().shift == hop);
    for (int pass = 0; pass < 2; ++pass) {  // a second recomputation before any backward
      SavedAttention replayed = saved;
      attention->attend(inputs, spec, row, AttentionCheckpoint::replaying(replayed));
    }
    CHECK(mesh.ring.traffic().shift == 3 * hop);
    out.sum().backward();
    CHECK(mesh.ring.traffic().shift == 4 * hop);  // and the gradients' way home
    const AttentionInputs frozen{
        inputs.q_TNH.detach(), inputs.k_SMH.detach(), inputs.v_SMH.detach(), {}};
    SavedAttention unused{.results = {}, .prefetches = true, .started_by_replay = {}};
    attention->attend(frozen, spec, row, AttentionCheckpoint::saving(unused));
    attention->attend(frozen, spec, row, AttentionCheckpoint::replaying(unused));
    CHECK(mesh.ring.traffic().shift == 5 * hop);  // no backward will come
  });
}

TEST_CASE("zigzag ring: in every step every rank has the same work, and all of it is done") {
  const int R = 3;
  const Packing padded = zigzag_order(Packing::from_lengths({25, 1, 60}), 1, 0, R).packing;
  double total = 0;
  for (int step = 0; step < R; ++step) {
    const double work = pairs_of(zigzag_blocks(padded, 0, (R - step) % R, R));
    for (int rank = 0; rank < R; ++rank) {
      CHECK(pairs_of(zigzag_blocks(padded, rank, (rank - step + R) % R, R)) == work);
    }
    total += R * work;
  }
  CHECK(total == pairs_of(causal_blocks(padded)));
}

TEST_CASE("zigzag ring: short answers to a prompt of half the row are not balanced") {
  Document document{8192, {{0, kNoParent}}};
  for (int64_t begin = 4096; begin < 8192; begin += 64) document.segments.push_back({begin, 0});
  const Packing row = Packing::from_documents({document});
  const auto largest_over_mean = [&](const char* method) {
    const int P = 8;
    const ParallelPlan plan = testing::plan_of(method_named(method), P);
    double largest = 0, sum = 0;
    for (int rank = 0; rank < P; ++rank) {
      double pairs = 0;
      for (const AttentionStep& step :
           plan.method->geometry(plan, plain_attention(1, 1, 16), row, rank).steps) {
        for (const AttentionCall& call : step.calls) pairs += pairs_of(call.blocks);
      }
      largest = std::max(largest, pairs);
      sum += pairs;
    }
    return largest * P / sum;
  };
  CHECK(largest_over_mean("zigzag-ring") == doctest::Approx(1.29).epsilon(0.005));
  CHECK(largest_over_mean("striped-ring") < 1.01);
}

TEST_CASE("zigzag ring: each document is padded to a multiple of 2R") {
  for (const int R : {2, 3}) {
    testing::check_token_orders(
        testing::plan_of(kMethod, R), [R](const Packing& row, int64_t multiple) {
          int64_t length = 0;
          for (int64_t document = 0; document < row.num_documents(); ++document) {
            length += round_up(row.length(document), 2 * R);
          }
          while (length / R % multiple != 0) length += 2 * R;
          return length;
        });
  }
}

}  // namespace
}  // namespace longspan
