// Parts of a Method that several methods share. Each method names the parts that it uses. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/plan/attention_volume.h"
#include "longspan/plan/geometry.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/pass_cost.h"
#include "longspan/registers/method.h"
#include "longspan/rows/packing.h"
#include "longspan/rows/token_order.h"

namespace longspan {

// Method::keys
inline constexpr const MethodKey* kOnlyHeadWaves[] = {&kHeadWaves};

// Method::refusal
std::string fits_any_heads(int num_ranks, const AttentionShape& heads);
/// The number of ranks must divide the query heads. kv heads may be fewer, or not divisible: each
/// goes to every rank that needs it.
std::string fits_whole_heads(int num_ranks, const AttentionShape& heads);
/// True if the method's rule is fits_any_heads.
bool serves_any_heads(const Method& method);

// Method::ulysses_degrees, Method::auto_degrees
std::vector<int> all_exchange_heads(const PlanRequest& request, const Method& self);   // P
std::vector<int> none_exchange_heads(const PlanRequest& request, const Method& self);  // 1
/// The divisors of the ranks that divide the query heads, or the degree in the request.
std::vector<int> dividing_degrees(const PlanRequest& request, const Method& self);
std::vector<int> not_by_auto(const PlanRequest& request, const Method& self);

// Method::complete
void nothing_more(const PlanRequest& request, ParallelPlan& plan);

// Method::head_waves
/// All heads at once.
int64_t most_one_wave(int64_t num_heads, const ParallelPlan& plan);
inline constexpr HeadWaves kOneWave{.own = 1, .cuts_heads = false, .most = most_one_wave};
// HeadWaves::most
/// The query heads of a rank.
int64_t whole_heads_of_rank(int64_t num_heads, const ParallelPlan& plan);

// Method::padded_row
Packing padded_at_tail(const ParallelPlan& plan, const Packing& row);
/// Each document in chunks of zigzag order over the ring, and the ring shares divisible by Ulysses.
Packing padded_for_zigzag(const ParallelPlan& plan, const Packing& row);

// Method::token_order
/// The row in its order, padded at its tail, in equal consecutive parts.
TokenOrder consecutive_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple,
                              int rank);

// Method::geometry
/// Ulysses: equal runs of whole heads, each over the whole row.
RankGeometry geometry_of_whole_heads(const ParallelPlan& plan, const AttentionShape& shape,
                                     const Packing& padded, int rank);
/// The same, but latents of the whole row travel instead of keys and values if that is less
/// (passes_latents()).
RankGeometry geometry_with_latents(const ParallelPlan& plan, const AttentionShape& shape,
                                   const Packing& padded, int rank);

// Method::context_seconds
double keys_at_hand(const PassCost& cost, double bytes, const std::vector<double>& work);
/// Around a ring or, with windows of ranks, around rings of neighbours that hop on a ring of
/// windows. In a layer with a sliding window: directly from the owners.
double keys_round_rings(const PassCost& cost, double bytes, const std::vector<double>& work);

// Method::exchange_seconds
double nothing_exchanged(const PassCost& cost, double bytes, double context_seconds);
/// No work hides the arrival of the first wave and the departure of the last one.
double exchanged_in_waves(const PassCost& cost, double bytes, double context_seconds);

}  // namespace longspan
