// JSON parsing with errors that name file and line, and with a limit of depth. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "longspan/input/input_file.h"

namespace longspan {

/// Largest depth of nested lists and objects. The parser refuses deeper values: code that copies,
/// prints or frees a JSON value recurses once per level, and would overflow the stack.
inline constexpr int kMaxJsonDepth = 512;

/// Parses a whole JSON text. `first_line`: the number of its first line in the file. Throws
/// UserError: "file.json, line 12: broken JSON: ...", also for numbers beyond a double's range and
/// for values deeper than kMaxJsonDepth.
nlohmann::json parse_json(std::string_view text, const std::string& file_name,
                          int64_t first_line = 1);
/// The same, but keeps the order of keys.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& file_name,
                                          int64_t first_line = 1);
/// As parse_json(). Also throws UserError where the outermost object has a key twice; the other
/// functions keep the key's last value.
nlohmann::json parse_json_of_single_keys(std::string_view text, const std::string& file_name);

/// Return nullopt where parse_json() throws.
std::optional<nlohmann::json> try_parse_json(std::string_view text);
std::optional<nlohmann::ordered_json> try_parse_ordered_json(std::string_view text);

/// Reads a file with one JSON value: read_text_file(), then parse_json().
nlohmann::json read_json_file(const std::string& path, std::string_view what,
                              int64_t most_bytes = kMaxSettingsBytes);
nlohmann::ordered_json read_ordered_json_file(const std::string& path, std::string_view what,
                                              int64_t most_bytes = kMaxSettingsBytes);

}  // namespace longspan
