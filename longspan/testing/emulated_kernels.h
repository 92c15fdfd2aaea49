// The kernels of cuda/rows without a GPU: they run as ordinary functions (cuda_threads.h), on CPU
// tensors. Results differ only by the rounding of exp and of one division.
#pragma once

#include <compare>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/cuda/kernels.h"

namespace longspan::testing {

/// 16 bytes that a block copies to shared memory asynchronously (cp.async).
struct CopiedVector {
  unsigned block_x, block_y;
  const char* from;
};

/// A line of a kernel's source.
struct KernelLine {
  std::string_view file;
  int line = 0;
  auto operator<=>(const KernelLine&) const = default;
};

class EmulatedKernels : public cuda::Kernels {
 public:
  /// `shared_bytes`: of a multiprocessor.
  explicit EmulatedKernels(int shared_bytes = cuda::kLeastSharedBytes)
      : shared_bytes_(shared_bytes) {}
  /// Few, so that blocks of small tensors have several rows.
  int num_multiprocessors() const override { return 2; }
  int shared_bytes() const override { return shared_bytes_; }

  /// Collects the copies of the kernels that start from here on.
  void collect_copies_in(std::vector<CopiedVector>& copied) { copied_ = &copied; }
  /// Collects the barriers and waits for copies of the kernels that start from here on.
  void collect_waits_in(std::set<KernelLine>& waits) { waits_ = &waits; }
  /// Lets threads pass this barrier or wait.
  void leave_out(const KernelLine& wait) { left_out_ = wait; }

 protected:
  void start(const std::string& name, const cuda::Launch& launch, const void* argument) override;

 private:
  int shared_bytes_;
  std::vector<CopiedVector>* copied_ = nullptr;
  std::set<KernelLine>* waits_ = nullptr;
  std::optional<KernelLine> left_out_;
};

}  // namespace longspan::testing
