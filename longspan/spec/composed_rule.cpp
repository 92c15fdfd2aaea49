// The names of tensors are those of kernels/cuda_delta_rule.h. C: tokens of a chunk, K, V: numbers
// in a head of keys and of values.
#include "longspan/spec/composed_rule.h"

#include <algorithm>

namespace longspan {

RuleMemory rule_memory(const RecurrenceSpec& recurrence, int64_t element_bytes) {
  constexpr int64_t C = kRuleChunk, kFp32 = 4;
  const int64_t K = recurrence.key_dim, V = recurrence.value_dim;
  const auto bytes = [&](int64_t of_value_head, int64_t of_key_head) {
    return recurrence.num_value_heads * of_value_head * element_bytes +
           recurrence.num_key_heads * of_key_head * kFp32;
  };
  const int64_t left = C * (K + C), right = C * (K + V), kept = C * K, inverse = C * C,
                solved = right, held = (K + C) * V, out = C * V, heads = 2 * C * K,
                products = 2 * C * C;
  const int64_t operands = left + right + kept + inverse, in_backward = operands + 2 * held;
  return {// When the gradients of states exist, and when those of heads do.
          .chunk_bytes =
              std::max(bytes(in_backward + solved + std::max(out, inverse), heads + products),
                       bytes(in_backward + inverse, 2 * heads + products)),
          .forward_bytes =
              std::max({bytes(operands, heads + products), bytes(operands + solved, 0),
                        bytes(left + kept + solved + held, 0), bytes(left + held + out, 0)}),
          .token_bytes = recurrence.num_value_heads * K * element_bytes};
}

int64_t chunks_of_part(int64_t num_tokens, const RuleMemory& memory) {
  const auto quotient = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t chunks = quotient(num_tokens, kRuleChunk),
                bytes = std::max(kComposedRuleBytes,
                                 kComposedRuleTensors * num_tokens * memory.token_bytes),
                most =
                    std::max(kLeastChunksOfPart, bytes / std::max<int64_t>(1, memory.chunk_bytes));
  return quotient(chunks, std::max<int64_t>(1, quotient(chunks, most)));
}

}  // namespace longspan
