// A kernel of attention beside the CPU's in fp64, which has a test of its own.
// T: query tokens, S: key tokens, N: query heads, M: kv heads.
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

/// Of some hundred tokens, so that there are several tiles of 64 and of 128 and rests of both.
std::vector<KernelCase> kernel_cases();

struct KernelShape {
  int64_t N, M, key_dim, value_dim;
  double softcap = 0;
};

/// Forward and backward on tensors of the device are as far from fp64 as `tolerance` at most.
void check_kernel(const BlockKernel& kernel, at::Device device, at::ScalarType dtype,
                  const KernelShape& shape, const KernelCase& one, double tolerance);

}  // namespace longspan::testing
