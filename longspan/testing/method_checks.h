// What every sequence-parallel method must do, as checks for the tests of each.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "longspan/plan/parallel_plan.h"
#include "longspan/testing/attention_case.h"

namespace longspan::testing {

/// One sequence group of ring * ulysses ranks.
ParallelPlan plan_of(const Method* method, int ring, int ulysses = 1, int window = 1);

/// Bytes that a method should send over one forward and one backward, all ranks together, for a
/// padded row of T tokens and these widths of a number and of a gradient on its way.
using TrafficFormula = std::function<Traffic(int64_t T, int64_t num_heads, int64_t num_kv_heads,
                                             int64_t head_dim, int64_t bytes, int64_t grad_bytes)>;

/// In fp64, for one document and for ragged ones, rows shorter than the ranks, MHA, GQA and MQA (of
/// those the head counts that the plan's ulysses_size divides): out and gradients are those of
/// solve_plainly to 1e-11, and bytes are those of the formula.
void check_solves(const ParallelPlan& plan, const TrafficFormula& formula);

/// In fp64, fp32 and bf16: replayed attention gives the same bits as computed attention, close to
/// solve_plainly, and sends the formula's bytes.
void check_replays(const ParallelPlan& plan, const TrafficFormula& formula);

/// For rows of many shapes and several multiples: every token is on one rank once, shares are equal
/// and a multiple of what is asked for, and the row is as long as `padded_length` says.
void check_token_orders(
    const ParallelPlan& plan,
    const std::function<int64_t(const Packing& packing, int64_t multiple)>& padded_length);

}  // namespace longspan::testing
