// Plans calls of attention kernels from the lengths of blocks: which kernel computes a block, and
// which blocks share a call of a varlen kernel. No torch.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/flash_accumulators.h"

namespace longspan {

/// Shorter blocks go to a varlen kernel, which is as fast on them, many at once.
inline constexpr int64_t kLeastForCudnn = 2048;

/// Blocks, in order, by the kernel that computes them on a GPU that has cuDNN's.
struct BlocksByKernel {
  std::vector<Block> cudnn;   // one block a call
  std::vector<Block> varlen;  // many blocks a call
};

/// cuDNN computes long blocks whose masks it has: causal blocks that begin with the first key, and
/// blocks without a mask whose lengths need no fill (cudnn_length). Blocks that are longer than
/// `most_tokens` with their fill are left to the varlen kernel.
BlocksByKernel by_kernel(const std::vector<Block>& blocks,
                         int64_t most_tokens = std::numeric_limits<int64_t>::max());

/// True if FlashAttention 3 can compute the gradients of the blocks, however they are divided into
/// calls: its backward computes offsets into the accumulators of a head in 32 bits
/// (hopper/flash_bwd_launch_template.h: rows of all segments, padded at each, times the padded head
/// dim). All other offsets have 64 bits.
bool fit_flash3_accumulators(const std::vector<Block>& blocks);

/// Returns the length to which a causal block of cuDNN is filled up, so that few lengths need a
/// plan: to a multiple of 256 tokens below 8192, where a fill to 1024 takes a noticeable share of
/// the time, and to a multiple of 1024 from there on.
int64_t cudnn_length(int64_t length);

/// Limits of a call of a varlen kernel.
struct CallLimits {
  int64_t num_segments = std::numeric_limits<int64_t>::max();
  /// The kernel's grid is as long as the longest segment, for each segment. Segments of similar
  /// lengths then share a call.
  bool has_full_grid = false;
  std::optional<FlashAccumulators> accumulators = {};

  bool operator==(const CallLimits&) const = default;
};

/// A call of a varlen kernel, which has one causal flag and one window for all its segments. The
/// last query of a causal segment sees the segment's last key.
struct PlannedCall {
  bool causal;
  int64_t window_left;  // keys that a query sees before the key on its diagonal; -1: all
  std::vector<Block> segments;
};

/// True if a GPU computes the blocks in several calls, because of their lengths or masks.
bool has_several_calls(const std::vector<Block>& blocks);

/// Returns calls that together compute the blocks. Queries of a block that is too long for one call
/// are in several calls.
std::vector<PlannedCall> plan_calls(const std::vector<Block>& blocks, const CallLimits& limits);

}  // namespace longspan
