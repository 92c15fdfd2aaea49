// Counts the CPU memory of tensors.
#pragma once

#include <cstdint>
#include <memory>

namespace longspan {

/// For the lifetime of a counter, adds each tensor's CPU memory at its allocation and subtracts
/// this memory when any thread frees the tensor. Ignores memory that was allocated before the
/// counter. Several counters may live at once, nested in one thread. Costs one small allocation per
/// tensor.
///
///     AllocationCounter counter(AllocationCounter::Of::kThisThread);
///     ... ; counter.restart_peak(); const int64_t before = counter.live_bytes();
///     work();
///     counter.peak_bytes() - before
class AllocationCounter {
 public:
  /// Counts the allocations of this thread (for ranks that are threads of one process), or of all
  /// threads.
  enum class Of { kThisThread, kProcess };

  explicit AllocationCounter(Of whom);
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  int64_t live_bytes() const;
  /// Peak of live_bytes() since construction or the last restart_peak().
  int64_t peak_bytes() const;
  void restart_peak();

  struct Count;

 private:
  Of whom_;
  std::shared_ptr<Count> count_, previous_;
};

}  // namespace longspan
