// Numbers and texts as bytes, for files that only processes of the same run read. No torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace longspan {

class PackedBytes {
 public:
  template <typename Number>
  void add(Number number) {
    static_assert(std::is_arithmetic_v<Number>);
    append(&number, sizeof(number));
  }
  /// Adds the length of a list, then the numbers.
  template <typename Number>
  void add_list(const std::vector<Number>& numbers) {
    add(std::ssize(numbers));
    append(numbers.data(), numbers.size() * sizeof(Number));
  }
  void add_text(std::string_view text) {
    add(std::ssize(text));
    append(text.data(), text.size());
  }

  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

 private:
  void append(const void* data, size_t num_bytes) {
    bytes_.append(static_cast<const char*>(data), num_bytes);
  }

  std::string bytes_;
};

/// Reads the values of a PackedBytes, in the same order. Throws std::out_of_range if the bytes end
/// early.
class UnpackedBytes {
 public:
  explicit UnpackedBytes(std::string_view bytes) : rest_(bytes) {}

  template <typename Number>
  Number next() {
    Number number;
    std::memcpy(&number, take(1, sizeof(number)).data(), sizeof(number));
    return number;
  }
  template <typename Number>
  std::vector<Number> next_list() {
    const std::string_view taken = take(next<int64_t>(), sizeof(Number));
    std::vector<Number> numbers(taken.size() / sizeof(Number));
    if (!numbers.empty()) std::memcpy(numbers.data(), taken.data(), taken.size());
    return numbers;
  }
  std::string_view next_text() { return take(next<int64_t>(), 1); }

 private:
  std::string_view take(int64_t count, size_t size) {
    if (count < 0 || static_cast<uint64_t>(count) > rest_.size() / size) {
      throw std::out_of_range("packed bytes end early");
    }
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(count) * size);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest_;
};

}  // namespace longspan
