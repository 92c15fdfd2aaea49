// Attention on one device, as an autograd function: the leaf of every composition.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "longspan/attention/block_kernel.h"
#include "longspan/data/packing.h"

namespace longspan {

/// q_TNH, k_TMH, v_TMH, and sinks_N where the layer has them -> out_TNH (attention.h), one causal
/// block for each document, within the layer's window. Takes part in SaveScope and ReplayScope
/// (saved_attention.h).
at::Tensor leaf_attention(const BlockKernel& kernel, const at::Tensor& q_TNH,
                          const at::Tensor& k_TMH, const at::Tensor& v_TMH,
                          const AttentionSpec& spec, const Packing& packing,
                          const at::Tensor& sinks_N = {});
/// The same with blocks of the caller's choice; k_SMH and v_SMH may have another length than q_TNH.
at::Tensor leaf_attention(const BlockKernel& kernel, const at::Tensor& q_TNH,
                          const at::Tensor& k_SMH, const at::Tensor& v_SMH,
                          const AttentionSpec& spec, std::vector<Block> blocks,
                          const at::Tensor& sinks_N = {});

/// For every leaf: the next saved result inside a ReplayScope, else compute(); inside a SaveScope
/// the result is also saved.
AttentionResult saved_or_computed(const std::function<AttentionResult()>& compute);

}  // namespace longspan
