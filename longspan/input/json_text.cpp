#include "longspan/input/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

/// Objects with this many keys get a table for lookups.
constexpr size_t kManyKeys = 32;

// Returns the parser's reason: after "parse error at line 1, column 9: " and before its list of
// tokens.
std::string reason(std::string_view what) {
  const size_t place = what.find("column ");
  const size_t colon = place == std::string_view::npos ? place : what.find(": ", place);
  if (colon != std::string_view::npos) what.remove_prefix(colon + 2);
  return std::string(what.substr(0, 160));
}

/// Returns the byte at which the depth exceeds the limit.
size_t place_of_depth(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return text.size();
}

/// Builds a value from the events of the parser, which does not recurse. A function that returns
/// false ends the parsing.
template <typename Json>
class Builder {
 public:
  Builder(std::string_view text, bool single_keys) : text_(text), single_keys_(single_keys) {}

  bool null() { return put(Json(nullptr)); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(typename Json::number_integer_t value) { return put(Json(value)); }
  bool number_unsigned(typename Json::number_unsigned_t value) { return put(Json(value)); }
  bool number_float(typename Json::number_float_t value, const std::string&) {
    return put(Json(value));
  }
  bool string(std::string& value) { return put(Json(std::move(value))); }
  bool binary(typename Json::binary_t&) { return false; }  // JSON text has no binary values
  bool start_object(size_t) { return open(Json(Json::value_t::object)); }
  bool start_array(size_t) { return open(Json(Json::value_t::array)); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    if (single_keys_ && levels_.size() == 1 && level.value->contains(name)) {
      repeated_ = name;
      return false;
    }
    slot_ = value_of(level, name);
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::json::exception& error) {
    place_ = std::min(position == 0 ? 0 : position - 1, text_.size());
    problem_ = error.id == 406
                   ? fmt::format("the number {} is beyond what a double holds", token.substr(0, 60))
                   : "broken JSON: " + reason(error.what());
    return false;
  }

  /// Returns whether there is a value; else problem_in() says what is wrong.
  bool parse() { return Json::sax_parse(text_.begin(), text_.end(), this) && problem_.empty(); }
  Json take() { return std::move(root_); }
  std::string problem_in(const std::string& file_name, int64_t first_line) const {
    if (!repeated_.empty() || problem_.empty()) {
      return fmt::format("{}: \"{}\" is given twice; keep one", file_name, repeated_.substr(0, 60));
    }
    const int64_t line = first_line + std::count(text_.begin(), text_.begin() + place_, '\n');
    return fmt::format("{}, line {}: {}", file_name, line, problem_);
  }

 private:
  struct Level {
    Json* value;
    std::unordered_map<std::string, size_t> places;  // of keys in a large ordered object
  };

  Json* value_of(Level& level, std::string& name) {
    auto& object = level.value->template get_ref<typename Json::object_t&>();
    if constexpr (!std::is_same_v<Json, nlohmann::ordered_json>) {
      return &object[std::move(name)];
    } else {
      if (object.size() < kManyKeys) return &object[name];
      if (level.places.empty()) {
        for (const auto& [known, value] : object) level.places.emplace(known, level.places.size());
      }
      const auto [found, is_new] = level.places.emplace(name, object.size());
      if (is_new) {
        // Appends to the container, since the object's own insertion would search all its keys.
        static_cast<typename Json::object_t::Container&>(object).emplace_back(name, Json(nullptr));
      }
      return &object.begin()[static_cast<std::ptrdiff_t>(found->second)].second;
    }
  }

  Json* place_for(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (Json& parent = *levels_.back().value; parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool put(Json value) {
    place_for(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (levels_.size() == kMaxJsonDepth) {
      place_ = place_of_depth(text_);
      problem_ = fmt::format("more than {} lists and objects within each other", kMaxJsonDepth);
      return false;
    }
    levels_.push_back({place_for(std::move(value)), {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  std::string_view text_;
  bool single_keys_;
  Json root_;
  std::vector<Level> levels_;  // open levels; each holds the next
  Json* slot_ = nullptr;       // for the value of the last key
  std::string problem_, repeated_;
  size_t place_ = 0;
};

template <typename Json>
Json parsed(std::string_view text, const std::string& file_name, int64_t first_line,
            bool single_keys = false) {
  Builder<Json> builder(text, single_keys);
  if (!builder.parse()) throw UserError(builder.problem_in(file_name, first_line));
  return builder.take();
}

template <typename Json>
std::optional<Json> tried(std::string_view text) {
  Builder<Json> builder(text, /*single_keys=*/false);
  if (!builder.parse()) return std::nullopt;
  return builder.take();
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& file_name, int64_t first_line) {
  return parsed<nlohmann::json>(text, file_name, first_line);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file_name,
                                          int64_t first_line) {
  return parsed<nlohmann::ordered_json>(text, file_name, first_line);
}

nlohmann::json parse_json_of_single_keys(std::string_view text, const std::string& file_name) {
  return parsed<nlohmann::json>(text, file_name, 1, /*single_keys=*/true);
}

std::optional<nlohmann::json> try_parse_json(std::string_view text) {
  return tried<nlohmann::json>(text);
}

std::optional<nlohmann::ordered_json> try_parse_ordered_json(std::string_view text) {
  return tried<nlohmann::ordered_json>(text);
}

nlohmann::json read_json_file(const std::string& path, std::string_view what, int64_t most_bytes) {
  return parse_json(read_text_file(path, what, most_bytes), path);
}

nlohmann::ordered_json read_ordered_json_file(const std::string& path, std::string_view what,
                                              int64_t most_bytes) {
  return parse_ordered_json(read_text_file(path, what, most_bytes), path);
}

}  // namespace longspan
