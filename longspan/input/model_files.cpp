#include "longspan/input/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "longspan/base/user_error.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end();
}

/// Whether the path is a blob of the repository of which `folder` is a snapshot, in the hub's
/// cache. Both are free of links: a folder of blobs that is itself a link does not count.
bool is_blob(const fs::path& path, const fs::path& folder) {
  fs::path revision = folder;
  while (revision.has_relative_path() && revision.parent_path().filename() != "snapshots") {
    revision = revision.parent_path();
  }
  if (!revision.has_relative_path()) return false;
  const fs::path repository = revision.parent_path().parent_path();
  return path.parent_path() == repository / "blobs";
}

/// Returns the snapshot in the hub's cache that has the blob under this name; "" where there is
/// none.
std::string snapshot_with(const fs::path& blob, const std::string& name) {
  if (blob.parent_path().filename() != "blobs") return "";
  std::error_code error;
  const fs::path snapshots = blob.parent_path().parent_path() / "snapshots";
  for (const fs::directory_entry& revision : fs::directory_iterator(snapshots, error)) {
    if (fs::canonical(revision.path() / name, error) == blob && !error) return revision.path();
  }
  return "";
}

}  // namespace

std::string model_file(const std::string& folder, const std::string& name) {
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return path.string();  // opening it reports the error
  const fs::path target = fs::canonical(path, error);
  if (!error && (is_below(target, root) || is_blob(target, root))) return path.string();
  std::error_code ignored;
  const bool is_link = fs::is_symlink(fs::symlink_status(path, ignored));
  if (error && !is_link) return path.string();  // the file does not exist
  if (error) {
    throw UserError(fmt::format(
        "{} is a link to {}, which cannot be followed: {}. Put the file itself in its place, or "
        "remove the link.",
        path.string(), fs::read_symlink(path, ignored).string(),
        error == std::errc::too_many_symbolic_link_levels ? "links lead in a circle"
                                                          : error.message()));
  }
  const std::string snapshot = snapshot_with(target, name);
  throw UserError(fmt::format(
      "{} is a link to {}, outside of its folder. It is not read: what is there may be none of the "
      "model's, and would be copied into what is saved. {}Where you know what the links of the "
      "folder lead to, give a copy that has the files themselves: cp -rL {} COPY. Otherwise remove "
      "the link.",
      path.string(), target.string(),
      snapshot.empty() ? "" : fmt::format("Give the folder of the cache instead: {}. ", snapshot),
      folder));
}

void require_own_files(const std::string& folder) {
  static const std::set<fs::path> kinds = {".json", ".jsonl", ".jinja",
                                           ".txt",  ".model", ".safetensors"};
  std::error_code error;
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_symlink(error) && kinds.contains(entry.path().extension())) {
      names.insert(entry.path().filename());
    }
  }
  for (const std::string& name : names) model_file(folder, name);
}

}  // namespace longspan
