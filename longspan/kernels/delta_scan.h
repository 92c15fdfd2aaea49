// The states of the chunked gated delta rule, from chunk to chunk. N: heads, Z: chunks, C: tokens
// of a chunk, K, V: numbers in a head of keys and of values.
#pragma once

#include <ATen/core/Tensor.h>

namespace longspan {

struct ScannedStates {
  at::Tensor states_NZKV;  // before each chunk
  at::Tensor new_NZCV;     // each token's update of the state
  at::Tensor last_NKV;     // after the last chunk
};

/// Computes, for each chunk,
///   new = own - of_state S,   S <- whole S + kept^T new.
/// by ATen's operators, one chunk after the other. Differentiable in all inputs.
ScannedStates delta_scan(const at::Tensor& of_state_NZCK, const at::Tensor& own_NZCV,
                         const at::Tensor& kept_NZCK, const at::Tensor& whole_NZ,
                         const at::Tensor& initial_NKV);

}  // namespace longspan
