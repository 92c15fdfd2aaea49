// A decoder written plainly in ATen's operators, of layers of self-attention and gated MLPs
// or mixtures of these, in fp64 with autograd's own gradients: what decoders are compared with.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "longspan/data/batch.h"
#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/model_spec.h"

namespace longspan::testing {

/// Two layers, alike.
ModelSpec small_model(bool tied, bool biases);

/// Everything random and large enough to matter; leaves that want gradients.
std::vector<NamedTensor> random_leaves(const ModelSpec& spec);

/// Documents of these lengths, of whose tokens about this share has a label.
Batch random_batch(const ModelSpec& spec, const std::vector<int64_t>& lengths,
                   double share_of_labels);

/// log p of each label by plain operators.
at::Tensor plain_logprobs(const ModelSpec& spec, const std::vector<NamedTensor>& parameters,
                          const Batch& batch);

/// Gradients by name, which are taken off the parameters.
std::map<std::string, at::Tensor> take_gradients(const std::vector<NamedTensor>& parameters);

void check_equal(const std::map<std::string, at::Tensor>& ours,
                 const std::map<std::string, at::Tensor>& theirs, double tolerance = 1e-11);

}  // namespace longspan::testing
