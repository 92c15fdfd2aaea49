// Initialization and merging of the matrices of LoRA adapters (arXiv 2106.09685). The computation
// with adapters is in kernels/ (Linear).
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

/// Returns <layer>.lora_A.weight [R, I] and <layer>.lora_B.weight [O, R] of lora_parameters_of(),
/// as fp32 leaves. A is uniform in [-1 / sqrt(I), 1 / sqrt(I)] (PEFT's Kaiming initialization), and
/// depends on the seed alone, not on the machine. B is zero.
std::vector<NamedTensor> new_lora_parameters(const ModelSpec& model, const LoraShape& shape,
                                             uint64_t seed);

/// weight += scale * B A, computed in fp32 and rounded once.
void add_lora(const at::Tensor& weight_OI, const at::Tensor& a_RI, const at::Tensor& b_OR,
              double scale);

/// Returns the rows of an adapter's B that belong to this projection: all rows unless projections
/// share the adapter.
at::Tensor own_rows(const ParameterSpec& projection, const at::Tensor& b_OR);

/// Calls add_lora() for each adapter among the model's parameters, and removes the adapter's
/// matrices from the list.
void merge_lora(const ModelSpec& model, std::vector<NamedTensor>& parameters, double scale);

}  // namespace longspan
