// FNV-1a, a 64-bit hash. The hash of a parameter's name seeds its random values, so the values do
// not depend on the order of parameters. Checksums and file names also use the hash.
#pragma once

#include <cstdint>
#include <string_view>

namespace longspan {

class Fnv1a {
 public:
  /// Adds one unit, usually a byte.
  void add(uint64_t unit) { value_ = (value_ ^ unit) * 0x100000001b3; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

inline uint64_t fnv1a(std::string_view bytes) {
  Fnv1a hash;
  for (const unsigned char byte : bytes) hash.add(byte);
  return hash.value();
}

}  // namespace longspan
