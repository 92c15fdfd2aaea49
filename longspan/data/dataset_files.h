// Finds the files of a data set: a file, a folder, or a pattern. No torch.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace longspan {

struct DatasetFiles {
  std::vector<std::string> files;  // at least one, sorted by path, all of one kind
  std::string note;                // files of a folder that are not read; "" for none
};

/// True if a text is the path of a file of rows, a folder, or a pattern, and not a name in
/// dataset_info.json: it has a slash, a known ending, or a pattern's sign (*, ?, [).
bool is_path_of_rows(const std::string& text);

/// True if a file or folder has this path, or some file fits the pattern.
bool has_dataset_files(const std::filesystem::path& path);

/// Finds readable files. A folder gives all files in it, without hidden ones and files that
/// describe the others (README.md, ...). A pattern is one of glob(7). Throws UserError: no file,
/// other or different kinds of files, a folder with folders.
DatasetFiles find_dataset_files(const std::filesystem::path& path);

}  // namespace longspan
