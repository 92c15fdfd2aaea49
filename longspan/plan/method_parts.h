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
/// The number of ranks must divide the number of query heads. The kv heads may be fewer than the
/// ranks, or not divisible: each kv head goes to every rank with a query head of this kv head.
std::string fits_whole_heads(int num_ranks, const AttentionShape& heads);
/// True if the method's rule is fits_any_heads.
bool serves_any_heads(const Method& method);

// Method::ulysses_degrees, Method::auto_degrees
/// Returns the number of ranks: all ranks exchange heads.
std::vector<int> all_exchange_heads(const PlanRequest& request, const Method& self);
/// Returns 1: no ranks exchange heads.
std::vector<int> none_exchange_heads(const PlanRequest& request, const Method& self);
/// Returns the divisors of the number of ranks that divide the number of query heads, or the degree
/// in the request.
std::vector<int> dividing_degrees(const PlanRequest& request, const Method& self);
std::vector<int> not_by_auto(const PlanRequest& request, const Method& self);

// Method::complete
void nothing_more(const PlanRequest& request, ParallelPlan& plan);

// Method::head_waves
/// All heads in one wave.
int64_t most_one_wave(int64_t num_heads, const ParallelPlan& plan);
inline constexpr HeadWaves kOneWave{.own = 1, .cuts_heads = false, .most = most_one_wave};
// HeadWaves::most
/// At most as many waves as a rank has query heads.
int64_t whole_heads_of_rank(int64_t num_heads, const ParallelPlan& plan);

// Method::padded_row
Packing padded_at_tail(const ParallelPlan& plan, const Packing& row);
/// Pads each document to whole chunks of the zigzag order, and the ring's shares to a multiple of
/// the Ulysses degree.
Packing padded_for_zigzag(const ParallelPlan& plan, const Packing& row);

// Method::token_order
/// The row in its own order, padded at the end, in equal consecutive parts.
TokenOrder consecutive_shares(const ParallelPlan& plan, const Packing& row, int64_t multiple,
                              int rank);

// Method::geometry
/// Ulysses: equal runs of whole heads, each run over the whole row.
RankGeometry geometry_of_whole_heads(const ParallelPlan& plan, const AttentionShape& shape,
                                     const Packing& padded, int rank);
/// The same as geometry_of_whole_heads(), but latents of the whole row travel instead of keys and
/// values if the latents have fewer bytes (passes_latents()).
RankGeometry geometry_with_latents(const ParallelPlan& plan, const AttentionShape& shape,
                                   const Packing& padded, int rank);

// Method::context_seconds
double keys_at_hand(const PassCost& cost, double bytes, const std::vector<double>& work);
/// Keys and values travel around a ring. With windows of ranks, keys and values travel around inner
/// rings of neighbours, and then around an outer ring of windows. In a layer with a sliding window,
/// keys and values come directly from their owners.
double keys_round_rings(const PassCost& cost, double bytes, const std::vector<double>& work);

// Method::exchange_seconds
double nothing_exchanged(const PassCost& cost, double bytes, double context_seconds);
/// No work overlaps with the arrival of the first wave or with the departure of the last wave.
double exchanged_in_waves(const PassCost& cost, double bytes, double context_seconds);

}  // namespace longspan
