// checksums.json: a table of a folder's files with their checksums, and the table's own checksum. A
// folder that matches its table is whole. No torch.
#pragma once

#include <map>
#include <string>

#include "longspan/files/checksum.h"

namespace longspan {

inline constexpr const char* kChecksumFile = "checksums.json";

/// Checksums of a folder's files, by their paths in the folder.
using ChecksumTable = std::map<std::string, FileChecksum>;

/// Returns checksums of all files below `folder`. Leaves out the table itself, files that `known`
/// lists, and removed files that are still open (is_held_name).
ChecksumTable checksums_of(const std::string& folder, const ChecksumTable& known);

/// Writes the table. The table must be the last file written to the folder.
void write_checksum_file(const std::string& folder, const ChecksumTable& table);

/// Returns "" if the folder is whole: the table and all listed files are unchanged, and the folder
/// has no unlisted weights or states. Otherwise returns the fault in a few words. Divides the files
/// into `num_parts` parts of about equal bytes, and checks the part number `part`. A table of an
/// older version has no own checksum. Such a table is accepted, unless training_state.json says
/// that the table had a checksum (kCoversItself).
std::string broken_file(const std::string& folder, int part = 0, int num_parts = 1,
                        ReadFrom from = ReadFrom::kAnywhere);

/// The key of training_state.json for folders whose table has its own checksum.
inline constexpr const char* kCoversItself = "checksums_cover_themselves";

/// The table as text.
std::string table_text(const ChecksumTable& table);
struct ChecksumFile {
  ChecksumTable table;
  bool covers_itself = false;
};
/// Parses a table. Throws UserError for text that is not a table, that has changed, or that names a
/// file outside the folder.
ChecksumFile checksum_file_from(const std::string& text);
inline ChecksumTable table_from(const std::string& text) { return checksum_file_from(text).table; }

}  // namespace longspan
