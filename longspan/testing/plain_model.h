// A plain decoder of ATen operators in fp64 with autograd's gradients, for layers of self-attention
// and gated MLPs or mixtures of experts. The plain decoder is the reference for tests of decoders.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/rows/batch.h"
#include "longspan/spec/model_spec.h"

namespace longspan::testing {

/// Two equal layers.
ModelSpec small_model(bool tied, bool biases);

/// Returns random leaves that require gradients, large enough to affect results.
std::vector<NamedTensor> random_leaves(const ModelSpec& spec);

/// Returns documents of these lengths, with labels on about this share of the tokens.
Batch random_batch(const ModelSpec& spec, const std::vector<int64_t>& lengths,
                   double share_of_labels);

/// Returns log p of each label, by plain operators.
at::Tensor plain_logprobs(const ModelSpec& spec, const std::vector<NamedTensor>& parameters,
                          const Batch& batch);

/// Returns the gradients by name and resets them on the parameters.
std::map<std::string, at::Tensor> take_gradients(const std::vector<NamedTensor>& parameters);

void check_equal(const std::map<std::string, at::Tensor>& ours,
                 const std::map<std::string, at::Tensor>& theirs, double tolerance = 1e-11);

}  // namespace longspan::testing
