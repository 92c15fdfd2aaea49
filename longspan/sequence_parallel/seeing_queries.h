// Restricts a step of attention to the queries that see keys in the step. T: tokens, S: tokens of
// keys, N: heads, M: kv heads, H: elements of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "longspan/attention/block.h"
#include "longspan/attention/block_kernel.h"

namespace longspan {

/// The smallest range of queries that contains all queries of a step's blocks. The step processes
/// only the tensor rows of this range.
struct SeeingQueries {
  int64_t begin = 0, length = 0;
  std::vector<Block> blocks;  // q_begin is relative to `begin`

  explicit SeeingQueries(std::vector<Block> all) : blocks(std::move(all)) {
    if (blocks.empty()) return;
    begin = blocks[0].q_begin;
    int64_t end = begin;
    for (const Block& block : blocks) {
      begin = std::min(begin, block.q_begin);
      end = std::max(end, block.q_begin + block.q_length);
    }
    length = end - begin;
    for (Block& block : blocks) block.q_begin -= begin;
  }

  at::Tensor of(const at::Tensor& x_TNH) const { return x_TNH.narrow(0, begin, length); }
  at::Tensor of_lse(const at::Tensor& x_NT) const { return x_NT.narrow(1, begin, length); }
  /// Returns the inputs of the range's queries, with the given keys and values.
  AttentionGradientInputs of(const AttentionGradientInputs& all, const at::Tensor& k_SMH,
                             const at::Tensor& v_SMH) const {
    return {of(all.dout_TNH), of(all.q_TNH), k_SMH, v_SMH, of(all.out_TNH), of_lse(all.lse_NT)};
  }
};

}  // namespace longspan
