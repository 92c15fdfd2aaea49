#include "longspan/data/dataset_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <optional>
#include <system_error>

#include "longspan/base/user_error.h"
#include "longspan/data/file_kinds.h"
#include "longspan/input/input_file.h"
#include "longspan/text/shown.h"

namespace longspan {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPatternSigns = "*?[";

/// Names and endings of files that describe a data set. datasets.save_to_disk() writes the first
/// two.
constexpr std::string_view kDescriptions[] = {
    "state.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json",
    "LICENSE",    "LICENSE.txt",       "README.txt",         "README.md"};

std::string name_in(const std::string& path) { return fs::path(path).filename().string(); }

bool is_pattern(const std::string& path) {
  return path.find_first_of(kPatternSigns) != std::string::npos && !is_there(path);
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  std::ranges::sort(paths);
  return paths;
}

std::vector<std::string> files_in(const fs::path& folder, std::vector<std::string>& left_out) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with(".")) continue;
    if (file.is_directory(error)) {
      throw UserError(fmt::format(
          "the folder {} has a folder {}; name the folder with the files, or a pattern, for "
          "example {}",
          folder.string(), name, (folder / name / "*.parquet").string()));
    }
    const bool describes = std::ranges::find(kDescriptions, name) != std::end(kDescriptions);
    (describes ? left_out : files).push_back(file.path().string());
  }
  std::ranges::sort(files);
  std::ranges::sort(left_out);
  if (error) throw UserError(fmt::format("cannot read {}: {}", folder.string(), error.message()));
  if (files.empty()) throw UserError(fmt::format("there are no files in {}", folder.string()));
  return files;
}

}  // namespace

bool is_path_of_rows(const std::string& text) {
  return text.find('/') != std::string::npos || kind_of_file(text) ||
         text.find_first_of(kPatternSigns) != std::string::npos;
}

bool has_dataset_files(const fs::path& path) {
  return is_there(path.string()) || (is_pattern(path.string()) && !matches(path.string()).empty());
}

DatasetFiles find_dataset_files(const fs::path& path) {
  DatasetFiles found;
  std::vector<std::string> left_out;
  std::error_code error;
  if (is_pattern(path.string())) {
    found.files = matches(path.string());
    if (found.files.empty()) {
      throw UserError(fmt::format("no file fits the pattern {}", path.string()));
    }
  } else if (fs::is_directory(path, error)) {
    found.files = files_in(path, left_out);
  } else if (is_there(path.string())) {
    found.files.push_back(path.string());
  } else {
    throw UserError(fmt::format("there is no file {}", path.string()));
  }
  const std::optional<FileKind> kind = kind_of_file(found.files.front());
  for (const std::string& file : found.files) {
    const std::optional<FileKind> other = kind_of_file(file);
    if (!other) {
      throw UserError(fmt::format(
          "{}: such files are not read; {} are read{}", file, known_files(),
          found.files.size() == 1 ? "" : ". Name a pattern of the files with rows (*.jsonl)"));
    }
    if (other != kind) {
      throw UserError(fmt::format(
          "{} and {} are files of different kinds; a data set has files of one kind. Name a "
          "pattern (*.jsonl), or make two data sets",
          name_in(found.files.front()), name_in(file)));
    }
    require_readable_file(file, "dataset", kAnySize);
  }
  if (!left_out.empty()) {
    for (std::string& file : left_out) file = name_in(file);
    found.note = fmt::format("not read in the folder {}: {}", shortened(path.string(), 200),
                             fmt::join(left_out, ", "));
  }
  return found;
}

}  // namespace longspan
