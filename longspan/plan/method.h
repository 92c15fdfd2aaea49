// A method of sequence parallelism as a description: plans, times, accounts, the benchmark, help
// and error messages read it, and know no method by name. No torch.
//
// Each method is one constant in its file in sequence_parallel/. Functions are references: a
// description that forgets one does not compile. What several methods have in common is in
// plan/method_parts.h, plan/exchange_volume.h and plan/attention_memory.h; a method names what it
// has, and nothing is assumed of a method that does not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/plan/method_key.h"

namespace longspan {

class BlockKernel;
class Packing;
class PassCost;
class SequenceParallel;
struct AttentionMemory;
struct AttentionShape;
struct AttentionSpec;
struct AttentionVolumeParts;
struct Mesh;
struct RankGeometry;
struct TokenOrder;

/// Parts in which a method exchanges and attends heads, a few heads at a time.
struct HeadWaves {
  int own;          // where the request names no number
  bool cuts_heads;  // a wave may hold a part of a head
  /// The most waves that these query heads allow, by the plan's sizes.
  int64_t (&most)(int64_t num_heads, const ParallelPlan& plan);
};

struct Method {
  std::string_view name;                   // the value of sequence_parallel_mode
  std::span<const MethodKey* const> keys;  // that it takes, in the order of the words for a plan
  HeadWaves head_waves;                    // kOneWave (plan/method_parts.h): all heads at once

  /// Why these heads cannot be spread over so many ranks, as "cannot split 3 attention heads over 2
  /// ranks: ..." without a full stop; empty where they can.
  std::string (&refusal)(int num_ranks, const AttentionShape& heads);
  /// The Ulysses degrees that serve a request, ascending. The ring degree is the rest. Throws
  /// UserError where the request names degrees that cannot be.
  std::vector<int> (&ulysses_degrees)(const PlanRequest& request, const Method& self);
  /// The degrees that `auto` tries, ascending; none: `auto` leaves the method out. Called only for
  /// heads that the method can split.
  std::vector<int> (&auto_degrees)(const PlanRequest& request, const Method& self);
  /// Completes a plan whose degrees are set with what it holds for this method alone. Throws
  /// UserError.
  void (&complete)(const PlanRequest& request, ParallelPlan& plan);

  /// The row with the padding that the method adds, as TokenOrder::packing has it.
  Packing (&padded_row)(const ParallelPlan& plan, const Packing& row);
  /// As SequenceParallel::token_order_of: which tokens of a row a rank holds.
  TokenOrder (&token_order)(const ParallelPlan& plan, const Packing& row, int64_t multiple,
                            int rank);
  /// Which blocks a rank attends in each step, and what reaches it for that (plan/geometry.h).
  RankGeometry (&geometry)(const ParallelPlan& plan, const AttentionShape& shape,
                           const Packing& padded, int rank);
  /// Seconds of a pass with keys and values that travel: `bytes` are what a rank sends of them,
  /// `work` the seconds that it computes between waits for keys.
  double (&context_seconds)(const PassCost& cost, double bytes, const std::vector<double>& work);
  /// Seconds of a pass that takes `context_seconds` when heads have been exchanged: with that
  /// exchange, of which a rank sends `bytes`.
  double (&exchange_seconds)(const PassCost& cost, double bytes, double context_seconds);
  /// As attention_volume_parts() in plan/attention_volume.h.
  AttentionVolumeParts (&volume)(const ParallelPlan& plan, const AttentionShape& shape,
                                 const Packing& padded, bool checkpointing, bool output_is_known);
  /// As attention_memory() in plan/attention_memory.h: what a rank holds of others' tokens.
  AttentionMemory (&memory)(const ParallelPlan& plan, const AttentionShape& shape,
                            const Packing& padded);

  /// For plans of more than one rank to a row. The kernel must outlive what is made.
  std::unique_ptr<SequenceParallel> (&make)(const ParallelPlan& plan, const Mesh& mesh,
                                            const BlockKernel& kernel);
};

/// One rank to a row. It is not in the register, since sequence_parallel_size asks for it.
extern const Method kLocal;

/// The register: all methods but kLocal, simple ones first. Of those that are estimated to take
/// about the same time `auto` takes the first. (sequence_parallel/methods.cpp)
std::span<const Method* const> all_methods();

/// The method of this name. Throws UserError, with all names, where there is none.
const Method* method_named(std::string_view name);

std::string names_of(std::span<const Method* const> methods, std::string_view between = ", ");

/// The methods for which `has(method)` is true, in the register's order.
template <typename Has>
std::vector<const Method*> methods_that(const Has& has) {
  std::vector<const Method*> methods;
  for (const Method* method : all_methods()) {
    if (has(*method)) methods.push_back(method);
  }
  return methods;
}

inline bool cuts_heads(const Method& method) { return method.head_waves.cuts_heads; }

/// "usp, ulysses 4 x ring 2", with windows where there are any, and waves unless they are those of
/// the method by itself.
std::string describe_method(const ParallelPlan& plan);

/// Can it split this layer's heads over `sequence_size` ranks?
bool can_split(const Method& method, int sequence_size, const AttentionSpec& spec);

/// The methods that can.
std::vector<const Method*> methods_that_split(int sequence_size, const AttentionSpec& spec);

}  // namespace longspan
