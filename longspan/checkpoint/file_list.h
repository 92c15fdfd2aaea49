// longspan_files.json: which files of a folder a run has written as its model, so that the next one
// there clears these and nothing else. No torch.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

namespace longspan {

inline constexpr const char* kFileList = "longspan_files.json";

/// What is known of a file that was written.
struct ListedFile {
  int64_t size = 0;
  /// Of all but weights, whose names say enough.
  std::optional<uint64_t> xxh64;
};
/// By name; files lie directly in the folder.
using FileList = std::map<std::string, ListedFile>;

/// Lists the files of `folder` and writes the list there. Throws UserError.
void write_file_list(const std::string& folder);

/// Nothing where there is no list, or one that no run has written.
FileList read_file_list(const std::string& folder);

/// Removes those files of `list` that are not in `fresh` from the folder. One that somebody has
/// changed since is renamed to NAME.kept; links, folders and what is not listed stay.
/// Throws UserError.
void remove_listed(const std::string& folder, const FileList& list,
                   const std::set<std::string>& fresh);

/// Renames a file of the folder to NAME.kept, or NAME.kept-2 and so on. Throws UserError.
void rename_to_kept(const std::string& folder, const std::string& name);

}  // namespace longspan
