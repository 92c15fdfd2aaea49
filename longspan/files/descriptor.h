// A file descriptor that its object closes. No torch.
#pragma once

#include <unistd.h>

#include <utility>

namespace longspan {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  /// The descriptor, negative where there is none.
  operator int() const { return number_; }

 private:
  int number_;
};

}  // namespace longspan
