#include "longspan/account/logit_chunk.h"

#include <algorithm>

#include "longspan/spec/device_sizes.h"

namespace longspan {

LogitChunk logit_chunk(const MemoryFacts& facts) {
  const auto V = static_cast<double>(facts.vocab_size);
  const HeadChunk& head = device_sizes(facts.cuda).head;
  const double copy = facts.compute_bytes < 4 ? 2.0 : 0.0;  // of the gradient in bf16
  if (!facts.divergence.is_computed) {
    return {V * (4.0 + copy), head.rows(facts.vocab_size, 4)};
  }
  // The logits of both models, and fp64 tensors of a part of the chunk (kernels/head_chunks.cpp):
  // of log-probabilities, ratios and gradients. The copy in bf16 is made after the last part.
  constexpr double kParts = 16, kTensors = 4, kTensorsOfMixture = 7;
  const auto& [is_computed, mixes, top_k] = facts.divergence;
  const double tensors = top_k == 0 && mixes ? kTensorsOfMixture : kTensors;
  LogitChunk chunk{V * (8.0 + std::max(copy, 8.0 * tensors / kParts)),
                   head.rows(facts.vocab_size, 8)};
  // The tokens that were chosen and their gradients, or log-sum-exps.
  const auto K = static_cast<double>(mixes ? 2 * top_k : top_k);
  chunk.label_bytes = top_k == 0 ? 3 * 8.0 : 8.0 * (2 * K + 2);
  return chunk;
}

double teacher_states(const MemoryFacts& facts) {
  if (!facts.divergence.is_computed) return 0.0;
  return static_cast<double>(facts.reference->hidden_size * facts.reference->compute_bytes);
}

}  // namespace longspan
