// Matrices of LoRA adapters (arXiv 2106.09685): how they begin, and how they are merged. What they
// compute is Linear's.
#pragma once

#include <cstdint>
#include <vector>

#include "longspan/parameters/named_tensor.h"
#include "longspan/spec/lora_spec.h"

namespace longspan {

/// <layer>.lora_A.weight [R, I] and <layer>.lora_B.weight [O, R] of lora_parameters_of(), fp32
/// leaves: A uniform within 1 / sqrt(I) as PEFT's Kaiming start gives it, the same for a seed on
/// every machine; B zero.
std::vector<NamedTensor> new_lora_parameters(const ModelSpec& model, const LoraShape& shape,
                                             uint64_t seed);

/// weight += scale * B A, in fp32, rounded once.
void add_lora(const at::Tensor& weight_OI, const at::Tensor& a_RI, const at::Tensor& b_OR,
              double scale);

/// The rows of an adapter's B that are this projection's: all where it shares no adapter.
at::Tensor own_rows(const ParameterSpec& projection, const at::Tensor& b_OR);

/// add_lora() for each adapter among the parameters of the model, whose matrices are dropped from
/// the list.
void merge_lora(const ModelSpec& model, std::vector<NamedTensor>& parameters, double scale);

}  // namespace longspan
