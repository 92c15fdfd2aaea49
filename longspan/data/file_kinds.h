// The kinds of files of rows. No torch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace longspan {

enum class FileKind { kJson, kCsv, kText, kParquet, kArrow };

/// Returns the kind that a file's ending says; an ending of compression (.gz, .zst) may stand
/// behind the ending of a text file. nullopt: no known ending.
std::optional<FileKind> kind_of_file(std::string_view path);

/// The endings in messages to the user: "json, jsonl, csv, txt, parquet and arrow files".
std::string known_files();

}  // namespace longspan
