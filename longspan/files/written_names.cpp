#include "longspan/files/written_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum_file.h"
#include "longspan/files/left_temporary.h"
#include "longspan/input/json_text.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

/// "PREFIX00012-of-00034.safetensors".
bool is_numbered(std::string_view name, std::string_view prefix) {
  constexpr std::string_view kOf = "-of-", kEnd = ".safetensors";
  if (!name.starts_with(prefix) || !name.ends_with(kEnd)) return false;
  name = name.substr(prefix.size(), name.size() - prefix.size() - kEnd.size());
  const size_t of = name.find(kOf);
  if (of == std::string_view::npos) return false;
  const auto is_number = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  return is_number(name.substr(0, of)) && is_number(name.substr(of + kOf.size()));
}

/// Names in the folder's table of checksums; none where it has no table.
std::set<std::string> names_with_checksums(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(folder + "/" + kChecksumFile, error))) return names;
  try {
    const std::string text =
        read_text_file(folder + "/" + kChecksumFile, "table of checksums", kMaxTableBytes);
    for (const auto& [name, checksum] : checksum_file_from(text).table) names.insert(name);
  } catch (const UserError&) {
  }
  return names;
}

}  // namespace

const std::vector<std::string>& tokenizer_file_names() {
  static const std::vector<std::string> names = {"tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "tokenizer.model",
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 "generation_config.json",
                                                 "preprocessor_config.json",
                                                 "video_preprocessor_config.json",
                                                 "processor_config.json"};
  return names;
}

const std::vector<std::string>& adapter_file_names() {
  static const std::vector<std::string> names = {"adapter_config.json", "adapter_model.safetensors",
                                                 "longspan_adapter.json"};
  return names;
}

const std::vector<std::string>& model_file_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"config.json", "model.safetensors",
                                    "model.safetensors.index.json", "value_head.safetensors"};
    all.insert(all.end(), adapter_file_names().begin(), adapter_file_names().end());
    return all;
  }();
  return names;
}

namespace {

bool is_among(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_final_name(const std::string& name) {
  static const std::vector<std::string> of_runs = {"longspan_files.json", "trainer_state.json",
                                                   "trainer_log.jsonl", "training_state.json",
                                                   kChecksumFile};
  return is_among(model_file_names(), name) || is_among(tokenizer_file_names(), name) ||
         is_among(of_runs, name) || is_numbered(name, "model-") ||
         is_numbered(name, "training_state/part-");
}

}  // namespace

bool is_written_name(const std::string& name) {
  const fs::path path(name);
  const auto old = old_temporary_from(path.filename());
  return is_final_name(name) || temporary_from(path.filename()).has_value() ||
         (old && is_final_name((path.parent_path() / old->name).string()));
}

bool is_held_name(const std::string& file_name) {
  constexpr std::string_view kBegin = ".nfs";
  constexpr size_t kFewestDigits = 8;
  return file_name.starts_with(kBegin) && file_name.size() >= kBegin.size() + kFewestDigits &&
         file_name.find_first_not_of("0123456789abcdef", kBegin.size()) == std::string::npos;
}

bool is_name_below(const std::string& name) {
  if (name.empty() || name.front() == '/' || name.back() == '/' ||
      name.find('\0') != std::string::npos) {
    return false;
  }
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return true;
}

bool holds_files(const std::string& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (fs::is_directory(entry->symlink_status(error))) continue;
    if (!is_held_name(entry->path().filename())) return true;
  }
  return static_cast<bool>(error);
}

std::string foreign_entry(const std::string& folder) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (status.type() == fs::file_type::not_found) return "";
  if (!fs::is_directory(status)) return "itself";
  const std::set<std::string> listed = names_with_checksums(folder);
  // Links are not followed.
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().lexically_relative(folder).string();
    const fs::file_status found = entry->symlink_status(error);
    if (error) break;
    const bool own =
        fs::is_directory(found)
            ? name == "training_state"
            : fs::is_regular_file(found) && (is_written_name(name) || listed.contains(name) ||
                                             is_held_name(entry->path().filename()));
    if (!own) return name;
  }
  return error ? "itself" : "";
}

void require_own_folder(const std::string& folder) {
  const std::string foreign = foreign_entry(folder);
  if (foreign == "itself") {
    throw UserError(fmt::format(
        "{} is in the way: a run writes a folder of that name, and this is another thing. Move it "
        "elsewhere.",
        folder));
  }
  if (!foreign.empty()) {
    throw UserError(fmt::format(
        "{} is in the way: a run writes a folder of that name, and this one holds {}, which no run "
        "has written. Move it elsewhere.",
        folder, foreign));
  }
}

void remove_own_folder(const std::string& folder) {
  require_own_folder(folder);
  std::error_code error;
  // Removes every other entry where one cannot be removed.
  std::vector<fs::path> paths{folder};
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    paths.push_back(entry->path());
  }
  error.clear();
  const bool has_held = std::ranges::any_of(
      paths, [](const fs::path& path) { return is_held_name(path.filename()); });
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    std::error_code failure;
    fs::remove(*path, failure);
    if (failure && !error) error = failure;
  }
  if (error && (!has_held || holds_files(folder))) {
    throw_disk_error(error.value(), fmt::format("{}: cannot be removed ({}). {}", folder,
                                                error.message(), remedy_for(error.value())));
  }
}

}  // namespace longspan
