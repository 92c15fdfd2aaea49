// JSON with errors that name the file and the line. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace longspan {

/// Parses a whole JSON text; `first_line` is the number of its first line in the file. Throws
/// UserError: "file.json, line 12: broken JSON: ...".
nlohmann::json parse_json(std::string_view text, const std::string& file_name,
                          int64_t first_line = 1);

/// The file's bytes, without a byte order mark. Throws UserError when it cannot be read; `what`
/// says what it is for ("configuration file").
std::string read_text_file(const std::string& path, std::string_view what);

}  // namespace longspan
