// Memory in which ATen's flash attention 2 accumulates the gradients of queries, in fp32. No torch.
#pragma once

#include <cstdint>

namespace longspan {

/// The accumulators of a call of the backward: [splits, rows, heads, elements]. Each segment of
/// queries has kRowsBeside further rows. Splits: 1, or, where results must be bit-reproducible, the
/// thread blocks of the GPU's multiprocessors that share a head of a segment; each has accumulators
/// of its own.
struct FlashAccumulators {
  int64_t num_heads = 1, head_dim = 1;
  int64_t num_multiprocessors = 0;  // 0: need not be bit-reproducible

  static constexpr int64_t kRowsBeside = 128;
  /// A call has at most this many bytes of accumulators. Offsets into accumulators are then below
  /// 2^31 elements: FlashAttention 2 before February 2026 wraps the offset of a segment there.
  static constexpr int64_t kMostBytes = int64_t{2} << 30;
  /// More multiprocessors than any GPU has.
  static constexpr int64_t kMostMultiprocessors = 192;

  /// The elements of a padded head.
  int64_t padded_dim() const {
    const int64_t multiple = head_dim <= 128 ? 32 : 64;
    return (head_dim + multiple - 1) / multiple * multiple;
  }
  int64_t bytes(int64_t num_queries, int64_t num_segments) const {
    const int64_t shared_by = num_segments * num_heads;
    const int64_t splits =
        num_multiprocessors > 0 ? (num_multiprocessors + shared_by - 1) / shared_by : 1;
    const int64_t rows = num_queries + kRowsBeside * num_segments;
    return splits * rows * num_heads * padded_dim() * static_cast<int64_t>(sizeof(float));
  }
  /// Returns the most queries of a segment in a call of its own, a multiple of kRowsBeside.
  int64_t most_queries() const {
    const int64_t rows = kMostBytes / (bytes(0, 1) / kRowsBeside);
    const int64_t queries = rows / kRowsBeside * kRowsBeside - kRowsBeside;
    return queries > kRowsBeside ? queries : kRowsBeside;
  }

  bool operator==(const FlashAccumulators&) const = default;
};

}  // namespace longspan
