// Barriers and waits left out of kernels, which tests must find.
#pragma once

#include <ATen/core/Tensor.h>  // files with this header include ATen/ATen.h
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "longspan/cuda/kernels.h"
#include "longspan/testing/emulated_kernels.h"

namespace longspan::testing {

/// Leaves out each barrier and each wait for copies of the kernels that `run` starts, one at a
/// time. Each time the emulation must stop, or a result must have other bits. run(kernels): the
/// results, on a CPU. Returns the number of waits.
inline size_t check_waits(const std::function<std::vector<at::Tensor>(cuda::Kernels&)>& run) {
  std::set<KernelLine> waits;
  EmulatedKernels whole;
  whole.collect_waits_in(waits);
  const std::vector<at::Tensor> wanted = run(whole);
  for (const at::Tensor& x : wanted) CHECK(!x.isnan().any().item<bool>());
  for (const KernelLine& wait : waits) {
    CAPTURE(std::string(wait.file));
    CAPTURE(wait.line);
    EmulatedKernels faulty;
    faulty.leave_out(wait);
    bool is_found = false;
    try {
      const std::vector<at::Tensor> found = run(faulty);
      for (size_t i = 0; i < wanted.size(); ++i) {
        is_found = is_found || !at::equal(found[i], wanted[i]);
      }
    } catch (const std::runtime_error&) {
      is_found = true;
    }
    CHECK(is_found);
  }
  return waits.size();
}

}  // namespace longspan::testing
