#include "longspan/files/file_list.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum.h"
#include "longspan/files/written_names.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/numbers.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

bool is_plain_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(path, error));
}

void move_file(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return;
  const int error = errno;
  throw_disk_error(error, fmt::format("Cannot rename {} to {}: {}. {}", from.string(), to.string(),
                                      std::strerror(error), remedy_for(error)));
}

/// Whether the file is as it was written.
bool is_same(const fs::path& path, const ListedFile& listed) {
  std::error_code error;
  if (!listed.xxh64) return true;
  if (static_cast<int64_t>(fs::file_size(path, error)) != listed.size) return false;
  return checksum_of_file(path.string()) == FileChecksum{listed.size, *listed.xxh64};
}

}  // namespace

void write_file_list(const std::string& folder) {
  std::map<std::string, fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name == kFileList || is_held_name(name)) continue;
    if (is_plain_file(entry.path())) paths[name] = entry.path();
  }
  Json files = Json::object();
  for (const auto& [name, path] : paths) {
    if (path.extension() == ".safetensors") {
      files[name] = {{"size", fs::file_size(path)}};
    } else {
      const FileChecksum checksum = checksum_of_file(path.string());
      files[name] = {{"size", checksum.size}, {"xxh64", fmt::format("{:016x}", checksum.xxh64)}};
    }
  }
  const Json list = {{"format", kFormat}, {"files", files}};
  write_file_atomically(folder + "/" + kFileList, list.dump(1) + "\n");
}

FileList read_file_list(const std::string& folder) {
  const std::string path = folder + "/" + kFileList;
  FileList list;
  if (!is_plain_file(path)) return list;
  try {
    const Json json =
        parse_ordered_json(read_text_file(path, "list of files", kMaxTableBytes), path);
    if (json.at("format") != kFormat) return {};
    for (const auto& [name, entry] : json.at("files").items()) {
      if (!is_name_below(name) || name.find('/') != std::string::npos) return {};
      ListedFile file{.size = whole_number(entry.at("size"), "size", 0, kMostCounted),
                      .xxh64 = std::nullopt};
      if (entry.contains("xxh64")) {
        const auto digits = entry.at("xxh64").get<std::string>();
        uint64_t number = 0;
        const char* end = digits.data() + digits.size();
        if (std::from_chars(digits.data(), end, number, 16).ptr != end) return {};
        file.xxh64 = number;
      }
      list[name] = file;
    }
  } catch (const UserError&) {
    return {};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return list;
}

void remove_listed(const std::string& folder, const FileList& list,
                   const std::set<std::string>& fresh) {
  for (const auto& [name, listed] : list) {
    const fs::path path = fs::path(folder) / name;
    if (fresh.contains(name) || !is_plain_file(path)) continue;
    if (is_same(path, listed)) {
      fs::remove(path);
    } else {
      rename_to_kept(folder, name);
    }
  }
}

void rename_to_kept(const std::string& folder, const std::string& name) {
  const fs::path path = fs::path(folder) / name;
  std::error_code error;
  fs::path kept = path.string() + ".kept";
  for (int number = 2; fs::exists(fs::symlink_status(kept, error)); ++number) {
    kept = fmt::format("{}.kept-{}", path.string(), number);
  }
  move_file(path, kept);
}

}  // namespace longspan
