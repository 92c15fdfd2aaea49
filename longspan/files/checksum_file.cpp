#include "longspan/files/checksum_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/written_names.h"
#include "longspan/input/input_file.h"
#include "longspan/input/json_text.h"
#include "longspan/input/model_files.h"
#include "longspan/input/numbers.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr int kChecksumFileFormat = 2;  // format 1 had no number and no checksum of the table

/// Digest of the table's contents, whatever the text's layout.
std::string digest_of(const ChecksumTable& table) {
  Xxh64 hash;
  for (const auto& [name, checksum] : table) {
    const std::string entry =
        fmt::format("{} {:016x} {} {}\n", checksum.size, checksum.xxh64, name.size(), name);
    hash.add(entry.data(), entry.size());
  }
  return fmt::format("{:016x}", hash.value());
}

uint64_t checksum_from(const std::string& digits) {
  uint64_t checksum = 0;
  const char* end = digits.data() + digits.size();
  const auto [stopped, error] = std::from_chars(digits.data(), end, checksum, 16);
  if (error != std::errc() || stopped != end) {
    throw UserError(fmt::format("{} is no checksum", digits));
  }
  return checksum;
}

/// Whether training_state.json says that the table had its own checksum. A table without it was
/// then changed.
bool had_digest(const std::string& folder) {
  try {
    const auto state = try_parse_json(
        read_text_file(folder + "/training_state.json", "training state", kMaxTableBytes));
    return state && state->is_object() && state->contains(kCoversItself);
  } catch (const UserError&) {
    return false;  // a broken file, which is reported elsewhere
  }
}

/// Returns weights or states that the table does not name. They would be read with the others.
std::string file_without_checksum(const std::string& folder, const ChecksumTable& table) {
  std::error_code error;
  for (const char* below : {"", "training_state"}) {
    for (const fs::directory_entry& entry :
         fs::directory_iterator(fs::path(folder) / below, error)) {
      const std::string name = (fs::path(below) / entry.path().filename()).string();
      if (entry.path().extension() == ".safetensors" && !table.contains(name)) return name;
    }
  }
  return "";
}

std::string problem_of(const std::string& folder, const std::string& name,
                       const FileChecksum& wanted, ReadFrom from) {
  std::error_code error;
  std::string path;
  try {
    path = model_file(folder, name);
  } catch (const UserError& refused) {
    return refused.what();
  }
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
    if (name == kChecksumFile || known.contains(name) || is_held_name(entry.path().filename()))
      continue;
    table[name] = checksum_of_file(entry.path().string());
  }
  return table;
}

std::string table_text(const ChecksumTable& table) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, checksum] : table) {
    files[name] = {{"size", checksum.size}, {"xxh64", fmt::format("{:016x}", checksum.xxh64)}};
  }
  const nlohmann::ordered_json checksums = {
      {"format", kChecksumFileFormat}, {"xxh64_of_this_table", digest_of(table)}, {"files", files}};
  return checksums.dump(1) + "\n";
}

ChecksumFile checksum_file_from(const std::string& text) {
  ChecksumFile checksums;
  try {
    const nlohmann::json json = parse_json(text, kChecksumFile);
    for (const auto& [name, entry] : json.at("files").items()) {
      if (!is_name_below(name)) throw UserError(fmt::format("{} is no name of a file in it", name));
      checksums.table[name] = {
          .size = whole_number(entry.at("size"), name + ": size", 0, kMostCounted),
          .xxh64 = checksum_from(entry.at("xxh64").get<std::string>())};
    }
    checksums.covers_itself = json.contains("format") || json.contains("xxh64_of_this_table");
    if (!checksums.covers_itself) return checksums;
    if (json.at("format") != kChecksumFileFormat) {
      throw UserError(fmt::format("its format is {}; this version of longspan reads {}",
                                  json.at("format").dump(), kChecksumFileFormat));
    }
    if (json.at("xxh64_of_this_table").get<std::string>() != digest_of(checksums.table)) {
      throw UserError("it is not what was written: its own checksum differs");
    }
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("it is no table of checksums ({})", error.what()));
  }
  return checksums;
}

void write_checksum_file(const std::string& folder, const ChecksumTable& table) {
  write_file_atomically(folder + "/" + kChecksumFile, table_text(table));
}

std::string broken_file(const std::string& folder, int part, int num_parts, ReadFrom from) {
  ChecksumTable table;
  try {
    ChecksumFile checksums = checksum_file_from(
        read_text_file(model_file(folder, kChecksumFile), "table of checksums", kMaxTableBytes));
    if (!checksums.covers_itself && had_digest(folder)) {
      throw UserError("it is not what was written: its own checksum is gone");
    }
    table = std::move(checksums.table);
    if (checksums.covers_itself) {
      if (const std::string name = file_without_checksum(folder, table); !name.empty()) {
        return fmt::format("{} is there, and was not when the folder was written ({})", name,
                           kChecksumFile);
      }
    }
  } catch (const UserError& error) {
    return fmt::format("{}: {}", kChecksumFile, error.what());
  }
  // Deals out files, largest first, to the part with the least bytes.
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
