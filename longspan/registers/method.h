// The description of a method of sequence parallelism. Plans, estimates, the benchmark, help and
// messages read the description, and none of them names a method. No torch.
//
// Each method is one constant in its file in sequence_parallel/. Its functions are references, so
// that an incomplete description does not compile. Parts that methods share are in
// plan/method_parts.h, plan/exchange_volume.h and plan/attention_memory.h; each method names the
// parts that it uses, and there are no defaults.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/registers/method_key.h"

namespace longspan {

class BlockKernel;
class Packing;
class PassCost;
class SequenceParallel;
struct AttentionMemory;
struct AttentionShape;
struct AttentionVolumeParts;
struct Mesh;
struct RankGeometry;
struct TokenOrder;

/// Parts in which a method exchanges and attends heads, a few heads at a time.
struct HeadWaves {
  int own;          // default of head waves
  bool cuts_heads;  // a wave may hold part of a head
  /// Returns the largest number of waves for these query heads under the plan's sizes.
  int64_t (&most)(int64_t num_heads, const ParallelPlan& plan);
};

struct Method {
  std::string_view name;                   // the value of sequence_parallel_mode
  std::span<const MethodKey* const> keys;  // its keys, in the order of a plan's description
  HeadWaves head_waves;                    // kOneWave (plan/method_parts.h): all heads at once

  /// Returns why these heads cannot be spread over `num_ranks` ranks, as "cannot split 3 attention
  /// heads over 2 ranks: ..." without a full stop; empty if the heads can be spread.
  std::string (&refusal)(int num_ranks, const AttentionShape& heads);
  /// Returns the Ulysses degrees that serve a request, ascending; the ring degree is the rest.
  /// Throws UserError for impossible degrees in the request.
  std::vector<int> (&ulysses_degrees)(const PlanRequest& request, const Method& self);
  /// Returns the degrees that `auto` tries, ascending; empty: `auto` skips the method. Called only
  /// for heads that the method can split.
  std::vector<int> (&auto_degrees)(const PlanRequest& request, const Method& self);
  /// Sets the fields of a plan that only this method uses, after the degrees are set. Throws
  /// UserError.
  void (&complete)(const PlanRequest& request, ParallelPlan& plan);

  /// Returns the row with the method's padding, as in TokenOrder::packing.
  Packing (&padded_row)(const ParallelPlan& plan, const Packing& row);
  /// Returns the tokens of a row on a rank, as SequenceParallel::token_order_of.
  TokenOrder (&token_order)(const ParallelPlan& plan, const Packing& row, int64_t multiple,
                            int rank);
  /// Returns the blocks that a rank attends in each step, and the data that reach the rank
  /// (plan/geometry.h).
  RankGeometry (&geometry)(const ParallelPlan& plan, const AttentionShape& shape,
                           const Packing& padded, int rank);
  /// Returns the seconds of a pass with travelling keys and values. `bytes`: the bytes that a rank
  /// sends; `work`: seconds of compute between waits for keys.
  double (&context_seconds)(const PassCost& cost, double bytes, const std::vector<double>& work);
  /// Returns the seconds of a pass including the head exchange, of which a rank sends `bytes`.
  /// `context_seconds`: the pass after the exchange.
  double (&exchange_seconds)(const PassCost& cost, double bytes, double context_seconds);
  /// As attention_volume_parts() in plan/attention_volume.h.
  AttentionVolumeParts (&volume)(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing, bool output_is_known);
  /// As attention_memory() in plan/attention_memory.h: memory for other ranks' tokens.
  AttentionMemory (&memory)(const ParallelPlan& plan, const AttentionShape& shape,
                            const Packing& padded);

  /// Makes the attention, for plans of more than one rank per row. The kernel must outlive the
  /// attention.
  std::unique_ptr<SequenceParallel> (&make)(const ParallelPlan& plan, const Mesh& mesh,
                                            const BlockKernel& kernel);
};

/// One rank per row. Not in the register, since sequence_parallel_size selects it.
extern const Method kLocal;

/// The register: all methods but kLocal, simple ones first. Of methods with about equal estimates,
/// `auto` takes the first (sequence_parallel/methods.cpp).
std::span<const Method* const> all_methods();

/// Returns the method of this name. Throws UserError with all names if `name` is unknown.
const Method* method_named(std::string_view name);

std::string names_of(std::span<const Method* const> methods, std::string_view between = ", ");

/// Returns the methods for which `has(method)` is true, in the register's order.
template <typename Has>
std::vector<const Method*> methods_that(const Has& has) {
  std::vector<const Method*> methods;
  for (const Method* method : all_methods()) {
    if (has(*method)) methods.push_back(method);
  }
  return methods;
}

inline bool cuts_heads(const Method& method) { return method.head_waves.cuts_heads; }

}  // namespace longspan
