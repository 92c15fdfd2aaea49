// Memory mapped at two addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace longspan::testing::accelerator {

inline constexpr size_t kPage = 4096;

/// One memory, mapped twice: tensors hold addresses of the front, kernels use the back, which is
/// always readable and writable. Reserves only address space; pages are allocated on first access.
class Window {
 public:
  /// `protection`: of the front (mprotect(2)). Throws std::runtime_error.
  Window(const char* name, size_t size, int protection);
  // Never freed.
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  size_t size() const { return size_; }
  char* front() const { return front_; }
  bool holds(const void* address) const {
    const auto* const at = static_cast<const char*>(address);
    return at >= front_ && at < front_ + size_;
  }
  /// Returns the kernels' address for an address of the front.
  char* back_of(const void* front) const {
    return back_ + (static_cast<const char*>(front) - front_);
  }
  /// `begin`, `size`: whole pages.
  void protect(const char* begin, size_t size, int protection) const;
  /// Returns whole pages to the system.
  void release(const char* begin, size_t size) const;

 private:
  int file_;
  size_t size_;
  char *front_, *back_;
};

}  // namespace longspan::testing::accelerator
