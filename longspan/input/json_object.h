// Typed access to an object of a JSON file. A missing value or a wrong type is a UserError that
// names file and key. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// A view of an object in a file. The JSON value must outlive the view. null counts as missing, as
/// in transformers. Types: bool, int, int64_t, double (any number), std::string, and vectors of
/// them.
class JsonObject {
 public:
  /// `source`: the object's place, which begins every error message ("config.json", "log.jsonl,
  /// line 3"). Throws UserError where the value is not an object.
  JsonObject(const nlohmann::json& object, std::string source);

  bool has(std::string_view key) const;
  /// As has(), but also true for null; for keys whose null differs from a missing key.
  bool contains(std::string_view key) const;
  /// Returns the value of a key. Throws UserError where the value is missing or of another type. A
  /// whole number must have no fraction and fit its type.
  template <typename T>
  T get(std::string_view key) const;
  template <typename T>
  T get(std::string_view key, T fallback) const {
    return has(key) ? get<T>(key) : fallback;
  }
  template <typename T>
  std::optional<T> optional(std::string_view key) const {
    return has(key) ? std::optional<T>(get<T>(key)) : std::nullopt;
  }
  /// Returns a whole number from `least` to `most`. Throws UserError as get().
  int64_t whole(std::string_view key, int64_t least, int64_t most) const;

  /// Returns the key's object, list or value of any type. Throws UserError as get().
  JsonObject object(std::string_view key) const;
  const nlohmann::json& list(std::string_view key) const;
  const nlohmann::json& value(std::string_view key) const;

  /// Adds each key that a later call names to `asked`, which must outlive this object. json() adds
  /// no key.
  void record(std::set<std::string>& asked) { asked_ = &asked; }

  /// The whole object, with null values.
  const nlohmann::json& json() const { return object_; }
  const std::string& source() const { return source_; }
  /// Throws UserError with the message "SOURCE: PROBLEM.".
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  const nlohmann::json& object_;
  std::string source_;
  std::set<std::string>* asked_ = nullptr;
};

}  // namespace longspan
