#include "longspan/checkpoint/seal.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/config/user_error.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

std::string problem_of(const std::string& folder, const std::string& name,
                       const FileChecksum& wanted, ReadFrom from) {
  std::error_code error;
  const std::string path = folder + "/" + name;
  const auto size = fs::file_size(path, error);
  if (error) return fmt::format("{} cannot be read ({})", name, error.message());
  if (static_cast<int64_t>(size) != wanted.size) {
    return fmt::format("{} has {} bytes, {} were written", name, size, wanted.size);
  }
  try {
    if (checksum_of_file(path, from) != wanted) {
      return fmt::format("{} is not what was written: its checksum differs", name);
    }
  } catch (const UserError& unreadable) {
    return unreadable.what();
  }
  return "";
}

}  // namespace

ChecksumTable checksums_of(const std::string& folder, const ChecksumTable& known) {
  ChecksumTable table;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), folder).string();
    if (name == kSealFile || known.contains(name)) continue;
    table[name] = checksum_of_file(entry.path().string());
  }
  return table;
}

std::string table_text(const ChecksumTable& table) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, checksum] : table) {
    files[name] = {{"size", checksum.size}, {"xxh64", fmt::format("{:016x}", checksum.xxh64)}};
  }
  return nlohmann::ordered_json{{"files", files}}.dump(1) + "\n";
}

ChecksumTable table_from(const std::string& text) {
  ChecksumTable table;
  try {
    const nlohmann::json json = parse_json(text, kSealFile);
    for (const auto& [name, entry] : json.at("files").items()) {
      const auto digits = entry.at("xxh64").get<std::string>();
      FileChecksum checksum{.size = entry.at("size").get<int64_t>(), .xxh64 = 0};
      const char* end = digits.data() + digits.size();
      if (std::from_chars(digits.data(), end, checksum.xxh64, 16).ptr != end) {
        throw UserError(fmt::format("{} is no checksum", digits));
      }
      table[name] = checksum;
    }
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("it is no table of checksums ({})", error.what()));
  }
  return table;
}

void write_seal(const std::string& folder, const ChecksumTable& table) {
  write_file_atomically(folder + "/" + kSealFile, table_text(table));
}

std::string broken_file(const std::string& folder, int part, int num_parts, ReadFrom from) {
  ChecksumTable table;
  try {
    table =
        table_from(read_text_file(folder + "/" + kSealFile, "table of checksums", kMaxTableBytes));
  } catch (const UserError& error) {
    return fmt::format("{}: {}", kSealFile, error.what());
  }
  // The largest first, each to the part that has least.
  std::vector<std::pair<std::string, FileChecksum>> files(table.begin(), table.end());
  std::ranges::stable_sort(
      files, [](const auto& a, const auto& b) { return a.second.size > b.second.size; });
  std::vector<int64_t> load(num_parts, 0);
  for (const auto& [name, wanted] : files) {
    const auto least = std::ranges::min_element(load);
    *least += wanted.size + 1;
    if (least - load.begin() != part) continue;
    const std::string problem = problem_of(folder, name, wanted, from);
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace longspan
