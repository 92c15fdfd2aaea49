// One attention problem, solved plainly on one device and by the ranks of a plan. T: tokens of the
// unpadded row, N: query heads, M: kv heads, H: elements of a head, J: elements of latents, E:
// elements of all kv heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "longspan/attention/latent_keys.h"
#include "longspan/comm/group.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rows/packing.h"

namespace longspan::testing {

struct AttentionCase {
  at::Tensor q_TNH, k_TMH, v_TMH, dout_TNH;
  at::Tensor sinks_N;  // if the spec has sinks
  /// If the spec has a latent_dim: keys and values of all heads are x_TJ up_JE, each head's key
  /// followed by its value. Attention gets x_TJ and up_JE.
  at::Tensor x_TJ, up_JE;
  AttentionSpec spec;
  Packing packing;
};

/// Returns a problem with seeded random tensors in fp64. The overloads with numbers of heads make
/// plain attention.
AttentionCase random_case(const Packing& packing, const AttentionSpec& spec, uint64_t seed);
AttentionCase random_case(const Packing& packing, int64_t num_heads, int64_t num_kv_heads,
                          int64_t head_dim, uint64_t seed);
AttentionCase random_case(const std::vector<int64_t>& document_lengths, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_dim, uint64_t seed);

/// Returns keys that expand latents by up_JE and add to the gradient of up_JE.
std::shared_ptr<const LatentKeys> latent_keys(const AttentionSpec& spec, const at::Tensor& up_JE);

struct AttentionSolution {
  at::Tensor out_TNH, dq_TNH, dk_TMH, dv_TMH;
  at::Tensor dsinks_N;       // on several ranks: summed
  at::Tensor dx_TJ, dup_JE;  // if the spec has a latent_dim; dup_JE on several ranks: summed
};

/// Computes softmax(scale q k^T + mask) v of each document and head by matmul and softmax in fp64,
/// with autograd's own gradients. As in transformers, scores are capped, keys outside a window are
/// masked, and sinks are an extra column of the scores.
AttentionSolution solve_plainly(const AttentionCase& problem);

struct DistributedSolution : AttentionSolution {
  /// Bytes that all ranks together send for one forward and one backward.
  Traffic traffic;
  Packing padded;  // the row as attention saw it
};

/// A problem and a plan.
struct DistributedTask {
  const AttentionCase* problem;
  ParallelPlan plan;
  at::ScalarType dtype = at::kDouble;
  bool checkpointing = false;
  bool output_is_known = false;
};

/// Calls solve_distributed() for each task. Connecting the ranks takes longer than most problems,
/// so tasks whose plans have the same groups share the connections.
std::vector<DistributedSolution> solve_all(const std::vector<DistributedTask>& tasks);

/// Runs make_attention(plan) on threads. Each rank takes its share of the row by token_order,
/// attends and runs the backward; the results are put back in row order. Padding holds large random
/// numbers, which must not affect the results. With checkpointing, the forward saves its
/// results, and the results are replayed before the backward, without values if the output is
/// known. Computes in `dtype`. Many problems share one start of ranks, which takes longer than most
/// problems.
std::vector<DistributedSolution> solve_distributed(const std::vector<AttentionCase>& problems,
                                                   const ParallelPlan& plan, at::ScalarType dtype,
                                                   bool checkpointing = false);
DistributedSolution solve_distributed(const AttentionCase& problem, const ParallelPlan& plan,
                                      at::ScalarType dtype, bool checkpointing = false);

}  // namespace longspan::testing
