// Numbers of files, keys and command lines, converted to counts. A number that does not fit is a
// UserError, and never becomes another number. No torch.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "longspan/base/user_error.h"

namespace longspan {

/// The largest count: a double holds every whole number up to this one.
inline constexpr int64_t kMostCounted = int64_t{1} << 53;
/// The largest dim of a tensor, and the largest token id.
inline constexpr int64_t kMostIndexed = INT32_MAX;

/// Converts a number; nullopt where the number is not whole, not finite, or does not fit.
inline std::optional<int64_t> as_whole(double number) {
  // -2^63 and 2^63 are doubles; INT64_MAX is not.
  if (!(number >= -0x1p63 && number < 0x1p63)) return std::nullopt;
  if (std::nearbyint(number) != number) return std::nullopt;
  return static_cast<int64_t>(number);
}

/// Converts a JSON number; nullopt where the value is not a number, or in the cases above.
template <typename Json>
  requires requires(const Json& json) { json.is_number_unsigned(); }
std::optional<int64_t> as_whole(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.template get<uint64_t>();
    return number <= uint64_t{INT64_MAX} ? std::optional(static_cast<int64_t>(number))
                                         : std::nullopt;
  }
  if (value.is_number_integer()) return value.template get<int64_t>();
  if (value.is_number_float()) return as_whole(value.template get<double>());
  return std::nullopt;
}

/// Throws UserError: "WHAT: GIVEN was given; wanted is a whole number, at least LEAST, at most
/// MOST".
[[noreturn]] inline void refuse_number(std::string_view what, std::string_view given, int64_t least,
                                       int64_t most) {
  std::string wanted = "a whole number";
  if (least != INT64_MIN) wanted += fmt::format(", at least {}", least);
  wanted += fmt::format(", at most {}", most);
  throw UserError(fmt::format("{}: {} was given; wanted is {}", what, given, wanted));
}

/// Converts a number, which must be whole and from `least` to `most`. `what`: the number's key,
/// with the key's place. Throws UserError.
inline int64_t whole_number(double number, std::string_view what, int64_t least = INT64_MIN,
                            int64_t most = INT64_MAX) {
  const std::optional<int64_t> whole = as_whole(number);
  if (!whole || *whole < least || *whole > most) {
    refuse_number(what, std::isnan(number) ? "nan" : fmt::format("{}", number), least, most);
  }
  return *whole;
}
template <typename Json>
  requires requires(const Json& json) { json.is_number_unsigned(); }
int64_t whole_number(const Json& value, std::string_view what, int64_t least = INT64_MIN,
                     int64_t most = INT64_MAX) {
  const std::optional<int64_t> whole = as_whole(value);
  if (!whole || *whole < least || *whole > most) {
    refuse_number(what, value.is_number() ? value.dump() : std::string(value.type_name()), least,
                  most);
  }
  return *whole;
}

/// As whole_number(), for all 64 bits of a number without a sign.
template <typename Json>
  requires requires(const Json& json) { json.is_number_unsigned(); }
uint64_t unsigned_number(const Json& value, std::string_view what) {
  if (value.is_number_unsigned()) return value.template get<uint64_t>();
  throw UserError(fmt::format("{}: {} was given; wanted is a whole number from 0 to {}", what,
                              value.is_number() ? value.dump() : std::string(value.type_name()),
                              UINT64_MAX));
}

/// Returns the product (sum_of: the sum); nullopt where the result exceeds int64_t.
inline std::optional<int64_t> product_of(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  bool fits = true;
  for (const int64_t factor : factors) {
    if (factor == 0) return 0;
    if (__builtin_mul_overflow(product, factor, &product)) fits = false;
  }
  return fits ? std::optional(product) : std::nullopt;
}
inline std::optional<int64_t> sum_of(std::initializer_list<int64_t> terms) {
  int64_t sum = 0;
  for (const int64_t term : terms) {
    if (__builtin_add_overflow(sum, term, &sum)) return std::nullopt;
  }
  return sum;
}

/// Returns the product. Throws UserError beyond kMostCounted; the message begins with `what`, the
/// name of the counted things.
inline int64_t bounded_product(std::initializer_list<int64_t> factors, std::string_view what) {
  const std::optional<int64_t> product = product_of(factors);
  if (product && *product <= kMostCounted) return *product;
  std::string text;
  for (const int64_t factor : factors) {
    text += fmt::format("{}{}", text.empty() ? "" : " x ", factor);
  }
  throw UserError(
      fmt::format("{}: {} is more than the {} that can be counted", what, text, kMostCounted));
}
inline int64_t counted_sum(std::initializer_list<int64_t> terms, std::string_view what) {
  const std::optional<int64_t> sum = sum_of(terms);
  if (sum && *sum <= kMostCounted) return *sum;
  throw UserError(
      fmt::format("{}: their sum is more than the {} that can be counted", what, kMostCounted));
}

}  // namespace longspan
