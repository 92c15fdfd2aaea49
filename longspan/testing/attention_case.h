// One attention problem, solved plainly on one device and by the ranks of a plan.
// T: tokens of the unpadded row, N: query heads, M: kv heads, H: numbers in a head, J: numbers that
// keys and values are made of, E: numbers of all kv heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "longspan/attention/latent_keys.h"
#include "longspan/comm/group.h"
#include "longspan/data/packing.h"
#include "longspan/plan/parallel_plan.h"

namespace longspan::testing {

struct AttentionCase {
  at::Tensor q_TNH, k_TMH, v_TMH, dout_TNH;
  at::Tensor sinks_N;  // where the spec has them
  /// Where the spec has a latent_dim: keys and values of all heads are x_TJ up_JE, each head's key
  /// and then its value. Attention gets these.
  at::Tensor x_TJ, up_JE;
  AttentionSpec spec;
  Packing packing;
};

/// Random, seeded; fp64. Of heads alone: plain attention of them.
AttentionCase random_case(const Packing& packing, const AttentionSpec& spec, uint64_t seed);
AttentionCase random_case(const Packing& packing, int64_t num_heads, int64_t num_kv_heads,
                          int64_t head_dim, uint64_t seed);
AttentionCase random_case(const std::vector<int64_t>& document_lengths, int64_t num_heads,
                          int64_t num_kv_heads, int64_t head_dim, uint64_t seed);

/// Keys and values by up_JE, whose gradient is added to its own.
std::shared_ptr<const LatentKeys> latent_keys(const AttentionSpec& spec, const at::Tensor& up_JE);

struct AttentionSolution {
  at::Tensor out_TNH, dq_TNH, dk_TMH, dv_TMH;
  at::Tensor dsinks_N;       // of ranks: their sum
  at::Tensor dx_TJ, dup_JE;  // where the spec has a latent_dim; of up: of ranks, their sum
};

/// softmax(scale q k^T + mask) v of each document and head by matmul and softmax in fp64, with
/// autograd's own gradients; scores capped, keys outside of a window masked and sinks one more
/// column of the scores, as transformers has them.
AttentionSolution solve_plainly(const AttentionCase& problem);

struct DistributedSolution : AttentionSolution {
  /// Of all ranks together, over one forward and one backward.
  Traffic traffic;
  Packing padded;  // the row as attention saw it
};

/// One problem for one plan.
struct DistributedTask {
  const AttentionCase* problem;
  ParallelPlan plan;
  at::ScalarType dtype = at::kDouble;
  bool checkpointing = false;
  bool output_is_known = false;
};

/// solve_distributed() of each. Connecting the ranks costs more than most problems: tasks whose
/// plans have the same groups share them.
std::vector<DistributedSolution> solve_all(const std::vector<DistributedTask>& tasks);

/// make_attention(plan) over threads: each rank takes its share of the row by token_order (padding
/// holds large random numbers, which must not matter), attends, runs the backward; the results are
/// put back in the order of the row. With checkpointing, the forward runs in a SaveScope and is
/// replayed before the backward; without values where the output is known. Computes in `dtype`.
/// Many problems share one session of ranks, whose start costs more than most of them.
std::vector<DistributedSolution> solve_distributed(const std::vector<AttentionCase>& problems,
                                                   const ParallelPlan& plan, at::ScalarType dtype,
                                                   bool checkpointing = false);
DistributedSolution solve_distributed(const AttentionCase& problem, const ParallelPlan& plan,
                                      at::ScalarType dtype, bool checkpointing = false);

}  // namespace longspan::testing
