// Attention on one device as an autograd function: the innermost part of every strategy.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "longspan/attention/block_kernel.h"
#include "longspan/rows/packing.h"

namespace longspan {

/// Returns out_TNH (attention.h) of one causal block for each document, within the layer's window.
/// sinks_N is given where the layer has sinks. Reads and fills the SaveScope or ReplayScope of the
/// thread (saved_attention.h).
at::Tensor leaf_attention(const BlockKernel& kernel, const at::Tensor& q_TNH,
                          const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                          const AttentionSpec& spec, const Packing& packing,
                          const at::Tensor& sinks_N = {});
/// The same with given blocks. k_SMH and v_SMH may have another length than q_TNH.
at::Tensor leaf_attention(const BlockKernel& kernel, const at::Tensor& q_TNH,
                          const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                          const AttentionSpec& spec, std::vector<Block> blocks,
                          const at::Tensor& sinks_N = {});

/// Returns the next saved result inside a ReplayScope, else compute(). Saves the result inside a
/// SaveScope. Every leaf attention calls it.
AttentionResult saved_or_computed(const std::function<AttentionResult()>& compute);

}  // namespace longspan
