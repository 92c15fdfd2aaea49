// Checks that every method of sequence parallelism must pass, for the test of each method.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "longspan/plan/parallel_plan.h"
#include "longspan/testing/attention_case.h"

namespace longspan::testing {

/// Returns the plan of one sequence group of ring * ulysses ranks.
ParallelPlan plan_of(const Method* method, int ring, int ulysses = 1, int window = 1);

/// Returns the bytes that a method should send for one forward and one backward, over all ranks,
/// for a padded row of T tokens. bytes, grad_bytes: of an element and of a gradient element in
/// transit.
using TrafficFormula = std::function<Traffic(int64_t T, int64_t num_heads, int64_t num_kv_heads,
                                             int64_t head_dim, int64_t bytes, int64_t grad_bytes)>;

/// Checks in fp64 that output and gradients equal the results of solve_plainly to 1e-11, and that
/// the sent bytes equal the formula's bytes. Cases: one document, ragged documents, rows shorter
/// than the ranks; MHA, GQA and MQA with head counts that ulysses_size divides.
void check_solves(const ParallelPlan& plan, const TrafficFormula& formula);

/// Checks in fp64, fp32 and bf16 that replayed attention gives the same bits as computed attention,
/// is close to solve_plainly, and sends the formula's bytes.
void check_replays(const ParallelPlan& plan, const TrafficFormula& formula);

/// Checks for rows of many shapes and several multiples that every token is on exactly one rank,
/// that shares are equal and a multiple of the requested number, and that the row has the length
/// `padded_length`.
void check_token_orders(
    const ParallelPlan& plan,
    const std::function<int64_t(const Packing& packing, int64_t multiple)>& padded_length);

}  // namespace longspan::testing
