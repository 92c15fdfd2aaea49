// checksums.json: which files a folder has and what is in them. A folder whose table fits is whole.
// No torch.
#pragma once

#include <map>
#include <string>

#include "longspan/checkpoint/checksum.h"

namespace longspan {

inline constexpr const char* kSealFile = "checksums.json";

/// Checksums of the files of a folder, by their paths in it.
using ChecksumTable = std::map<std::string, FileChecksum>;

/// Of all files below `folder` but the table itself, without those that `known` has.
ChecksumTable checksums_of(const std::string& folder, const ChecksumTable& known);

/// Writes the table; the last file of a folder.
void write_seal(const std::string& folder, const ChecksumTable& table);

/// What is wrong with the folder, in a few words; empty when each file that its table names is as
/// it was. `part` of `num_parts` looks at its share of the files, about equal in bytes.
std::string broken_file(const std::string& folder, int part = 0, int num_parts = 1,
                        ReadFrom from = ReadFrom::kAnywhere);

/// The table as text, and back. Throws UserError for text that is no table.
std::string table_text(const ChecksumTable& table);
ChecksumTable table_from(const std::string& text);

}  // namespace longspan
