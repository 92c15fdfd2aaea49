// Typed access to one object of a JSON file. What is missing or of another type is the file's fault
// and a UserError that names file and key. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// A view of an object in a file; the JSON value outlives it. null counts as absent, as in
/// transformers. Types: bool, int, int64_t, double (any number), std::string, and vectors of them.
class JsonObject {
 public:
  /// `source` is the place of the object, which begins its errors ("config.json", "log.jsonl, line
  /// 3"). Throws UserError when the value is no object.
  JsonObject(const nlohmann::json& object, std::string source);

  bool has(std::string_view key) const;
  /// As has, of null as well: where null says something else than a missing key.
  bool contains(std::string_view key) const;
  /// The value of a key. Throws UserError where it is missing or of another type; a whole number
  /// must be written without a fraction and fit its type.
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
  /// A whole number from `least` to `most`.
  int64_t whole(std::string_view key, int64_t least, int64_t most) const;

  /// The object, list or value of any type of a key. Throws UserError as get does.
  JsonObject object(std::string_view key) const;
  const nlohmann::json& list(std::string_view key) const;
  const nlohmann::json& value(std::string_view key) const;

  /// From here on puts every key that is asked for into `asked`, which outlives this. All of it, by
  /// json(), is asked for without that.
  void record(std::set<std::string>& asked) { asked_ = &asked; }

  /// All of it, null values as well.
  const nlohmann::json& json() const { return object_; }
  const std::string& source() const { return source_; }
  /// Throws UserError: "SOURCE: PROBLEM.".
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  const nlohmann::json& object_;
  std::string source_;
  std::set<std::string>* asked_ = nullptr;
};

}  // namespace longspan
