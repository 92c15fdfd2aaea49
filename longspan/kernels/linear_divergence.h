// The divergence of two models' distributions over tokens, from hidden states, one chunk of rows at
// a time. L: label positions, D: model dim of the student, E: of the teacher, V: vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "longspan/kernels/head_chunks.h"

namespace longspan {

/// The generalized Jensen-Shannon divergence of GKD (arXiv 2306.13649, eq. 1), in TRL's convention:
///
///   beta = 0:      KL(teacher || student), the forward KL
///   beta = 1:      KL(student || teacher), the reverse KL
///   0 < beta < 1:  beta KL(teacher || M) + (1 - beta) KL(student || M),
///                  M = beta teacher + (1 - beta) student
///
/// The forward and the reverse KL are not the limits of the mixtures, which tend to 0 at both ends.
struct DivergenceOptions {
  double beta = 0.5;  // in [0, 1]
  /// The logits of both models are divided by this positive number before the softmax. The result
  /// is not multiplied by its square.
  double temperature = 1.0;
  /// Compares k tokens one by one, and all other tokens as one outcome (the tail): the teacher's k
  /// most probable tokens for beta = 0, the student's for beta = 1, and the union of both
  /// otherwise. Probabilities are those of the whole softmax, not renormalized. The result is at
  /// most the divergence over the whole vocabulary, and equals that divergence for k >= V. The
  /// choice of tokens has no gradient. Empty: the whole vocabulary.
  std::optional<int64_t> top_k = {};
};

/// The teacher's hidden states and head, without gradients.
struct TeacherHead {
  at::Tensor hidden_LE, weight_VE;
  /// Called before and after each use of the weight, in the forward and in the backward; empty: the
  /// weight is always in memory.
  std::function<void()> before_use = {}, after_use = {};
};

/// Returns the divergence of student and teacher at each label position, [L] in fp64 (nats).
/// Differentiable in the student's hidden states and weight. Logits are fp32, or fp64 for fp64;
/// probabilities and sums over them are fp64.
///
/// Without top_k, the forward saves log-sum-exps, and the backward recomputes both models' logits.
/// With top_k, the forward saves the gradients of the k tokens and the tail, and the backward
/// recomputes the
/// student's logits only. The logits of both models together take at most `chunk_bytes`.
///
/// Throws c10::Error for options out of their range, and for models of different vocabularies or
/// dtypes of logits.
at::Tensor linear_divergence(const at::Tensor& hidden_LD, const at::Tensor& weight_VD,
                             const TeacherHead& teacher, const DivergenceOptions& options,
                             ChunkBytes chunk_bytes = {});

}  // namespace longspan
