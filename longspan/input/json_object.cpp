#include "longspan/input/json_object.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

using nlohmann::json;

template <typename T>
struct IsList : std::false_type {};
template <typename T>
struct IsList<std::vector<T>> : std::true_type {};

/// The name of this type after "must be".
template <typename T>
std::string name_of() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, int> || std::is_same_v<T, int64_t>) return "a whole number";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a text";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of texts";
  return "a list of numbers";
}

/// Converts a JSON value, if it has the type.
template <typename T>
bool take(const json& value, T& to) {
  if constexpr (IsList<T>::value) {
    if (!value.is_array()) return false;
    to.clear();
    for (const json& item : value) {
      typename T::value_type inner{};
      if (!take(item, inner)) return false;
      to.push_back(std::move(inner));
    }
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) return false;
  } else if constexpr (std::is_integral_v<T>) {
    if (value.is_number_unsigned()) {
      if (!std::in_range<T>(value.get<uint64_t>())) return false;
    } else if (!value.is_number_integer() || !std::in_range<T>(value.get<int64_t>())) {
      return false;
    }
  } else if constexpr (std::is_same_v<T, double>) {
    if (!value.is_number()) return false;
  } else {
    if (!value.is_string()) return false;
  }
  if constexpr (!IsList<T>::value) to = value.get<T>();
  return true;
}

/// Returns a short value, or its type's name.
std::string shown(const json& value) {
  return value.is_number() || value.is_boolean() ? value.dump() : value.type_name();
}

}  // namespace

JsonObject::JsonObject(const nlohmann::json& object, std::string source)
    : object_(object), source_(std::move(source)) {
  if (!object_.is_object()) throw UserError(fmt::format("{} is not a JSON object.", source_));
}

void JsonObject::fail(const std::string& problem) const {
  throw UserError(fmt::format("{}: {}.", source_, problem));
}

bool JsonObject::has(std::string_view key) const {
  if (asked_ != nullptr) asked_->emplace(key);
  const auto value = object_.find(key);
  return value != object_.end() && !value->is_null();
}

bool JsonObject::contains(std::string_view key) const {
  if (asked_ != nullptr) asked_->emplace(key);
  return object_.contains(key);
}

const nlohmann::json& JsonObject::value(std::string_view key) const {
  if (asked_ != nullptr) asked_->emplace(key);
  const auto value = object_.find(key);
  if (value == object_.end() || value->is_null()) fail(fmt::format("{} is missing", key));
  return *value;
}

template <typename T>
T JsonObject::get(std::string_view key) const {
  const nlohmann::json& given = value(key);
  T taken{};
  if (take(given, taken)) return taken;
  if (std::is_integral_v<T> && !std::is_same_v<T, bool> && given.is_number_integer()) {
    fail(fmt::format("{} is {}, which is too {}", key, given.dump(),
                     given.is_number_unsigned() || given.get<int64_t>() > 0 ? "large" : "small"));
  }
  // In a list, one item may be wrong.
  const std::string what = given.is_array() ? "" : fmt::format("; it is {}", shown(given));
  fail(fmt::format("{} must be {}{}", key, name_of<T>(), what));
}

template bool JsonObject::get(std::string_view key) const;
template int JsonObject::get(std::string_view key) const;
template int64_t JsonObject::get(std::string_view key) const;
template double JsonObject::get(std::string_view key) const;
template std::string JsonObject::get(std::string_view key) const;
template std::vector<int64_t> JsonObject::get(std::string_view key) const;
template std::vector<double> JsonObject::get(std::string_view key) const;
template std::vector<std::string> JsonObject::get(std::string_view key) const;

int64_t JsonObject::whole(std::string_view key, int64_t least, int64_t most) const {
  const auto number = get<int64_t>(key);
  if (number < least || number > most) {
    fail(fmt::format("{} is {}, it must be from {} to {}", key, number, least, most));
  }
  return number;
}

JsonObject JsonObject::object(std::string_view key) const {
  const nlohmann::json& inner = value(key);
  if (!inner.is_object()) fail(fmt::format("{} must be an object", key));
  return {inner, fmt::format("{} ({})", source_, key)};
}

const nlohmann::json& JsonObject::list(std::string_view key) const {
  const nlohmann::json& inner = value(key);
  if (!inner.is_array()) fail(fmt::format("{} must be a list", key));
  return inner;
}

}  // namespace longspan
