// How many rows or bytes a kind of device works on at a time: more are faster, fewer need less
// memory. The kernels use these sizes, and the account of memory counts them. No torch.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

/// Rows of the head whose logits are alive at a time: as many as fit, at least `least`. Fewer rows
/// mean that every chunk reads all of the weight, and adds to all of its gradient, for less work;
/// from `most` on it is as good.
struct HeadChunk {
  int64_t bytes, least, most;

  int64_t rows(int64_t vocab_size, int64_t element_bytes) const {
    return std::clamp(bytes / std::max<int64_t>(1, vocab_size * element_bytes), least, most);
  }
};

/// Rows whose dropout ATen's operators choose at a time: as many as have so many bytes of hashes,
/// eight a number, at least `least`. The choice takes some three tensors of that size.
struct DropoutChunk {
  int64_t bytes, least;

  int64_t rows(int64_t num_columns) const {
    return std::max(least, bytes / std::max<int64_t>(1, 8 * num_columns));
  }
};

/// Where a GPU has no kernels, gpt-oss's gate is composed of ATen's operators for so many numbers
/// at a time, which take so many bytes each: twelve tensors in fp32. The account leaves that out.
inline constexpr int64_t kComposedGateNumbers = int64_t{8} << 20, kComposedGateBytes = 48;
inline constexpr int64_t composed_gate_rows(int64_t width) {
  return std::max<int64_t>(1, kComposedGateNumbers / std::max<int64_t>(1, width));
}

struct DeviceSizes {
  /// Rows that a feed-forward and the steps before a token mixer work on at a time: bytes of the
  /// widest activation. Enough rows for gemms at full speed, few enough that what lives only inside
  /// of a sublayer is small beside the row.
  int64_t feed_forward_bytes, mixer_bytes;
  HeadChunk head;
  DropoutChunk dropout;
  /// A gemm whose result is added to more precise numbers is chunked by rows of the sum: bytes of a
  /// chunk's result. A GPU whose torch adds in fp32 needs no chunks.
  int64_t gemm_bytes;
  /// What a process takes of the device beside its tensors: the driver's context with the kernels
  /// of all libraries, what gemms work in, and the buffers of each group of processes.
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
/// A GPU multiplies so fast that what a chunk of the head reads and writes beside its logits, the
/// weight and its gradient, shows up to thousands of rows; and each gemm costs its host tens of
/// microseconds, in which the GPU multiplies thousands of rows. cuBLAS works in the 8 times 4 MiB
/// that cli/process/resources sets. NCCL has a buffer of 4 MiB (NCCL_BUFFSIZE) for each direction
/// of up to 32 channels.
inline constexpr DeviceSizes kCudaSizes{
    .feed_forward_bytes = int64_t{256} << 20,
    .mixer_bytes = int64_t{64} << 20,
    .head = {.bytes = int64_t{2} << 30, .least = 32, .most = 4096},
    .dropout = {.bytes = int64_t{256} << 20, .least = 256},
    .gemm_bytes = int64_t{64} << 20,
    .context_bytes = int64_t{512} << 20,
    // cuBLAS's, and cublasLt's beside it: torch 2.11 keeps both.
    .workspace_bytes = 2 * (int64_t{32} << 20),
    .group_bytes = int64_t{256} << 20};

constexpr const DeviceSizes& device_sizes(bool cuda) { return cuda ? kCudaSizes : kCpuSizes; }

}  // namespace longspan
