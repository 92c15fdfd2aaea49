// Initialization and merging of the matrices of LoRA adapters (arXiv 2106.09685). The computation
// with adapters is in kernels/ (Linear).
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

/// Returns <layer>.lora_A.weight [R, I] and <layer>.lora_B.weight [O, R] of lora_parameters_of(),
/// as fp32 leaves, and of a decomposed shape <layer>.lora_magnitude_vector [O], in that order. The
/// magnitudes are zeros: the first ones are the lengths of the weights' rows. A is uniform in [-1 /
/// sqrt(I), 1 / sqrt(I)] (PEFT's Kaiming initialization), and depends on the seed alone, not on the
/// machine. B is zero.
std::vector<NamedTensor> new_lora_parameters(const ModelSpec& model, const LoraShape& shape,
                                             uint64_t seed);

/// A and B of PiSSA (arXiv 2404.02948), as PEFT computes them, in fp32: scale * B A is the part of
/// the weight with the `r` largest singular values. `iterations`: of the randomized decomposition,
/// which depends on the seed; -1: an exact one.
struct LowRank {
  at::Tensor a_RI, b_OR;
};
LowRank principal_part(const at::Tensor& weight_OI, int64_t r, double scale, int64_t iterations,
                       uint64_t seed);

/// weight += scale * B A, computed in fp32 and rounded once. With magnitudes (DoRA), each row of
/// the sum then gets its magnitude as length.
void add_lora(const at::Tensor& weight_OI, const at::Tensor& a_RI, const at::Tensor& b_OR,
              double scale, const at::Tensor& magnitude_O = {});

/// Returns the rows of an adapter's B, or magnitudes, that belong to this projection: all of them
/// unless projections share the adapter. Undefined for an undefined tensor.
at::Tensor own_rows(const ParameterSpec& projection, const at::Tensor& b_OR);

/// Calls add_lora() for each adapter among the model's parameters, and removes the adapter's
/// parameters from the list. A later parameter of the same name, which the adapter holds whole,
/// replaces the model's.
void merge_lora(const ModelSpec& model, std::vector<NamedTensor>& parameters, double scale);

}  // namespace longspan
