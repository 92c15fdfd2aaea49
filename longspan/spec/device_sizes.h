// Sizes of the chunks that a CPU or a GPU processes at a time, in rows (tokens) or bytes. Larger
// chunks are faster; smaller chunks need less memory. The kernels use these sizes, and the memory
// estimate counts the chunks. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

/// Rows per chunk of the head: as many rows as have logits of `bytes` bytes, at least `least`, at
/// most `most`. Only the logits of one chunk exist at a time. Every chunk reads the whole weight
/// and adds to the whole gradient, so fewer rows are slower. More rows than `most` are not faster.
struct HeadChunk {
  int64_t bytes, least, most;

  int64_t rows(int64_t vocab_size, int64_t element_bytes) const {
    return std::clamp(bytes / std::max<int64_t>(1, vocab_size * element_bytes), least, most);
  }
};

/// Rows per chunk of dropout in ATen operators: as many rows as have `bytes` bytes of hashes (8
/// bytes per element), at least `least`. The computation of the mask needs about three tensors of
/// this size.
struct DropoutChunk {
  int64_t bytes, least;

  int64_t rows(int64_t num_columns) const {
    return std::max(least, bytes / std::max<int64_t>(1, 8 * num_columns));
  }
};

/// If a GPU has no kernels over rows, ATen operators compute each pass on kComposedNumbers elements
/// at a time, with at most kComposedBytes per element: twelve fp32 tensors, of gpt-oss's gate.
inline constexpr int64_t kComposedNumbers = int64_t{8} << 20, kComposedBytes = 48;
inline constexpr int64_t composed_rows(int64_t width) {
  return std::max<int64_t>(1, kComposedNumbers / std::max<int64_t>(1, width));
}

/// Pixels of pictures: bytes that a vision tower takes at a time, and bytes that are read ahead of
/// their use.
inline constexpr int64_t kPixelPartBytes = int64_t{64} << 20,
                         kPixelsAheadBytes = int64_t{256} << 20;

/// Larger gradients are reduced over `ranks` ranks in chunks of this size, two at a time. The part
/// for each rank has at least 4 MiB.
inline constexpr int64_t reduction_chunk_bytes(int64_t ranks) {
  return std::max(int64_t{64} << 20, ranks * (int64_t{4} << 20));
}

struct DeviceSizes {
  /// Chunk of a feed-forward, and of the steps before a token mixer, in bytes of the widest
  /// activation. The chunk is large enough for gemms at full speed, and small enough that
  /// temporaries within a sublayer are small relative to the row's activations.
  int64_t feed_forward_bytes, mixer_bytes;
  HeadChunk head;
  DropoutChunk dropout;
  /// Bytes of a chunk's result, in gemms whose result is added to elements of higher precision.
  /// Such a gemm is chunked by rows of the sum. No chunks are needed on a GPU if torch adds in
  /// fp32.
  int64_t gemm_bytes;
  /// Device bytes of a process besides tensors. context_bytes: the driver's context with the
  /// kernels of all libraries. workspace_bytes: the workspaces of gemms. group_bytes: the buffers
  /// of one communication group.
  int64_t context_bytes, workspace_bytes, group_bytes;
};

inline constexpr DeviceSizes kCpuSizes{
    .feed_forward_bytes = int64_t{8} << 20,
    .mixer_bytes = int64_t{2} << 20,
    .head = {.bytes = int64_t{64} << 20, .least = 32, .most = 1024},
    .dropout = {.bytes = 0, .least = 256},
    .gemm_bytes = int64_t{16} << 20,
    .context_bytes = 0,
    .workspace_bytes = 0,
    .group_bytes = 0};
/// In each chunk of the head, a GPU reads the weight and adds to the weight's gradient. The time of
/// these memory accesses is noticeable in chunks of up to thousands of rows. The launch of a gemm
/// takes the host tens of microseconds, in which the GPU multiplies thousands of rows.
/// cli/process/resources sets cuBLAS's workspace to 8 times 4 MiB. NCCL has a buffer of 4 MiB
/// (NCCL_BUFFSIZE) for each direction of up to 32 channels.
inline constexpr DeviceSizes kCudaSizes{
    .feed_forward_bytes = int64_t{256} << 20,
    .mixer_bytes = int64_t{64} << 20,
    .head = {.bytes = int64_t{2} << 30, .least = 32, .most = 4096},
    .dropout = {.bytes = int64_t{256} << 20, .least = 256},
    .gemm_bytes = int64_t{64} << 20,
    .context_bytes = int64_t{512} << 20,
    // One for cuBLAS and one for cublasLt: torch 2.11 keeps both.
    .workspace_bytes = 2 * (int64_t{32} << 20),
    .group_bytes = int64_t{256} << 20};

constexpr const DeviceSizes& device_sizes(bool cuda) { return cuda ? kCudaSizes : kCpuSizes; }

}  // namespace longspan
