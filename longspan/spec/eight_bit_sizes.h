// Sizes of products with matrices in 8 bits, which compute some tokens at a time
// (kernels/eight_bits). The memory account counts their temporaries. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

/// Returns the bytes of temporaries for a token: of fp32 inputs with their magnitudes and places;
/// later of codes, and of fp32 results with their scales. Numbers that are not rounded come on top.
constexpr int64_t eight_bit_token_bytes(int64_t num_inputs, int64_t num_outputs) {
  return std::max(9 * num_inputs, 2 * num_inputs + 8 * num_outputs);
}

/// Returns the largest number of tokens that are computed at a time.
constexpr int64_t eight_bit_tokens(int64_t num_inputs, int64_t num_outputs, bool on_gpu) {
  constexpr int64_t kOnCpu = int64_t{1} << 20, kOnGpu = int64_t{256} << 20;  // bytes
  constexpr int64_t kLeastTokens = 64;
  return std::max(kLeastTokens,
                  (on_gpu ? kOnGpu : kOnCpu) / eight_bit_token_bytes(num_inputs, num_outputs));
}

}  // namespace longspan
