// Compares an attention kernel to the CPU's kernel in fp64, which has its own test. T: query
// tokens, S: key tokens, N: query heads, M: kv heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "longspan/attention/block_kernel.h"

namespace longspan::testing {

struct KernelCase {
  std::string name;
  int64_t T, S;
  std::vector<Block> blocks;
  bool sees_itself_alone = false;
};

/// Returns cases of some hundred tokens, with several tiles of 64 and of 128 and partial tiles of
/// both sizes.
std::vector<KernelCase> kernel_cases();

struct KernelShape {
  int64_t N, M, key_dim, value_dim;
  double softcap = 0;
};

/// Checks that forward and backward on tensors of the device differ from fp64 by at most
/// `tolerance`.
void check_kernel(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                  const KernelShape& shape, const KernelCase& one, double tolerance);

}  // namespace longspan::testing
