// Counts the memory of tensors on the CPU while it runs.
#pragma once

#include <cstdint>
#include <memory>

namespace longspan {

/// While one of these lives, it adds tensors' memory on the CPU when that is allocated, and
/// subtracts it when any thread frees it. It does not see memory that was there before. Several may
/// live at once, nested in one thread. Costs one small allocation a tensor.
///
///     AllocationCounter counter(AllocationCounter::Of::kThisThread);
///     ... ; counter.restart_peak(); const int64_t before = counter.live_bytes();
///     work();
///     counter.peak_bytes() - before
class AllocationCounter {
 public:
  /// What this thread allocates (ranks that are threads of one process), or all threads.
  enum class Of { kThisThread, kProcess };

  explicit AllocationCounter(Of whom);
  ~AllocationCounter();
  AllocationCounter(const AllocationCounter&) = delete;
  AllocationCounter& operator=(const AllocationCounter&) = delete;

  int64_t live_bytes() const;
  /// The most that was alive at once since the start or the last restart_peak().
  int64_t peak_bytes() const;
  void restart_peak();

  struct Count;

 private:
  Of whom_;
  std::shared_ptr<Count> count_, previous_;
};

}  // namespace longspan
