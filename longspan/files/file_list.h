// longspan_files.json: the list of model files that a run has written into a folder. The next run
// in that folder clears those files and nothing else. No torch.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

namespace longspan {

inline constexpr const char* kFileList = "longspan_files.json";

/// A written file.
struct ListedFile {
  int64_t size = 0;
  /// Not set for weights, which are compared by name only.
  std::optional<uint64_t> xxh64;
};
/// By name. Files lie directly in the folder.
using FileList = std::map<std::string, ListedFile>;

/// Lists the files of `folder` and writes the list into it. Throws UserError.
void write_file_list(const std::string& folder);

/// Returns the list; empty where there is no list, or where no run wrote it.
FileList read_file_list(const std::string& folder);

/// Removes the files of `list` that are not in `fresh` from the folder. Renames a file that has
/// changed since the list was written to NAME.kept. Keeps links, folders and unlisted files. Throws
/// UserError.
void remove_listed(const std::string& folder, const FileList& list,
                   const std::set<std::string>& fresh);

/// Renames a file of the folder to NAME.kept, or NAME.kept-2 and so on. Throws UserError.
void rename_to_kept(const std::string& folder, const std::string& name);

}  // namespace longspan
