#include "longspan/data/file_kinds.h"

#include "longspan/text/compressed_file.h"

namespace longspan {

namespace {

struct KnownEnding {
  std::string_view text;
  FileKind kind;
  bool may_be_compressed;
};

constexpr KnownEnding kKnownEndings[] = {
    {".json", FileKind::kJson, true},        {".jsonl", FileKind::kJson, true},
    {".csv", FileKind::kCsv, true},          {".txt", FileKind::kText, true},
    {".parquet", FileKind::kParquet, false}, {".arrow", FileKind::kArrow, false}};

}  // namespace

std::optional<FileKind> kind_of_file(std::string_view path) {
  const std::string_view compression = compression_ending(path);
  path.remove_suffix(compression.size());
  for (const KnownEnding& ending : kKnownEndings) {
    if (!path.ends_with(ending.text)) continue;
    if (compression.empty() || ending.may_be_compressed) return ending.kind;
  }
  return std::nullopt;
}

std::string known_files() {
  return "json, jsonl, csv and txt files, these also with .gz or .zst behind, and parquet and "
         "arrow files";
}

}  // namespace longspan
