// checksums.json: which files a folder must have and what is in them, and the table's own checksum.
// A folder whose table fits is whole. No torch.
#pragma once

#include <map>
#include <string>

#include "longspan/checkpoint/checksum.h"

namespace longspan {

inline constexpr const char* kSealFile = "checksums.json";

/// Checksums of the files of a folder, by their paths in it.
using ChecksumTable = std::map<std::string, FileChecksum>;

/// Of all files below `folder` but the table itself, without those that `known` has and those that
/// are removed and still held open (is_held_name).
ChecksumTable checksums_of(const std::string& folder, const ChecksumTable& known);

/// Writes the table; the last file of a folder.
void write_seal(const std::string& folder, const ChecksumTable& table);

/// What is wrong with the folder, in a few words; empty when each file that its table names is as
/// it was, and the table, and there are no other weights or states. `part` of `num_parts` checks
/// its share of the files, about equal in bytes. A table of an older version, which has no checksum
/// of its own, is good unless the folder's training_state.json says that it had one
/// (kCoversItself).
std::string broken_file(const std::string& folder, int part = 0, int num_parts = 1,
                        ReadFrom from = ReadFrom::kAnywhere);

/// The key of training_state.json that says: the table of this folder has a checksum of its own.
inline constexpr const char* kCoversItself = "checksums_cover_themselves";

/// The table as text, and back.
std::string table_text(const ChecksumTable& table);
struct Seal {
  ChecksumTable table;
  bool covers_itself = false;
};
/// Throws UserError for text that is no table, is not as it was written, or names a file that is
/// not below the folder.
Seal seal_from(const std::string& text);
inline ChecksumTable table_from(const std::string& text) { return seal_from(text).table; }

}  // namespace longspan
