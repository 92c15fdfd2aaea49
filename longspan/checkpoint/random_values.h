// Random numbers that a seed and a name decide, on every machine and for any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace longspan {

/// Returns the key of the numbers of `name`.
uint64_t random_key(uint64_t seed, const std::string& name);

/// Fills a contiguous fp32 tensor from normal(0, standard_deviation).
void fill_normal(at::Tensor& tensor, uint64_t key, double standard_deviation);

}  // namespace longspan
