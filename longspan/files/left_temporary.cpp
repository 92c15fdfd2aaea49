#include "longspan/files/left_temporary.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <set>
#include <vector>

#include "longspan/files/checksum.h"
#include "longspan/files/file_list.h"
#include "longspan/files/written_names.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = ".longspan-", kEnd = ".partial";
/// Bytes of the final name in a temporary one. File systems allow 255 bytes in all.
constexpr size_t kMostOfName = 120;

std::string hash_of(const std::string& machine) {
  Xxh64 hash;
  hash.add(machine.data(), machine.size());
  return fmt::format("{:08x}", hash.value() >> 32);
}

/// Removes ".WORD" from the end of `text` and returns WORD.
std::string last_part(std::string_view& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string part(text.substr(dot + 1));
  text = text.substr(0, dot);
  return part;
}

/// Parses a number as printed: digits only, no leading zeros.
std::optional<int64_t> number_from(const std::string& text) {
  int64_t number = -1;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end || std::to_string(number) != text || number < 0) {
    return std::nullopt;
  }
  return number;
}

/// Whether a run has written into the folder, which may hold files of the user.
bool is_of_runs(const std::string& folder) {
  std::error_code error;
  const auto has_file = [&](const char* name) {
    return fs::is_regular_file(fs::symlink_status(fs::path(folder) / name, error));
  };
  return has_file(kFileList) || has_file("trainer_log.jsonl");
}

/// Whether the name is a model file or a report of a run.
bool is_of_a_run(const std::string& name) {
  static const std::set<std::string> reports = {"train_results.json",     "eval_results.json",
                                                "all_results.json",       "memory.json",
                                                "sequence_parallel.json", "expert_parallel.json"};
  return reports.contains(name) || is_written_name(name);
}

}  // namespace

std::string temporary_name(std::string_view name) {
  // Several threads of one process may write files of the same name.
  static std::atomic<int64_t> counter{0};
  const ProcessIdentity own = own_process();
  return fmt::format("{}{}.{}.{}.{}.{}{}", kBegin, name.substr(0, kMostOfName),
                     hash_of(own.machine), own.process, own.started, counter++, kEnd);
}

std::optional<TemporaryName> temporary_from(const std::string& file_name) {
  std::string_view rest = file_name;
  if (!rest.starts_with(kBegin) || !rest.ends_with(kEnd)) return std::nullopt;
  if (rest.size() < kBegin.size() + kEnd.size()) return std::nullopt;
  rest = rest.substr(kBegin.size(), rest.size() - kBegin.size() - kEnd.size());
  const auto count = number_from(last_part(rest)), started = number_from(last_part(rest)),
             process = number_from(last_part(rest));
  const std::string machine = last_part(rest);
  const bool is_hash = machine.size() == 8 && std::ranges::all_of(machine, [](char c) {
                         return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                       });
  if (!count || !started || !process || *process == 0 || !is_hash || rest.empty()) {
    return std::nullopt;
  }
  return TemporaryName{std::string(rest), machine, *process, *started, *count};
}

std::optional<OldTemporaryName> old_temporary_from(const std::string& file_name) {
  constexpr std::string_view kOldEnd = ".tmp";
  std::string_view rest = file_name;
  if (!rest.starts_with('.') || !rest.ends_with(kOldEnd)) return std::nullopt;
  rest.remove_suffix(kOldEnd.size());
  const std::string numbers = last_part(rest);
  const size_t dash = numbers.find('-');
  if (dash == std::string::npos || rest.size() < 2) return std::nullopt;
  const auto process = number_from(numbers.substr(0, dash)),
             count = number_from(numbers.substr(dash + 1));
  if (!process || *process == 0 || !count) return std::nullopt;
  return OldTemporaryName{std::string(rest.substr(1)), *process};
}

void remove_left_temporaries(const std::string& folder, bool folder_is_ours) {
  std::error_code error;
  std::vector<fs::path> left;
  const ProcessIdentity own = own_process();
  const bool has_old = folder_is_ours && is_of_runs(folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string file_name = entry.path().filename();
    bool gone = false;
    if (const auto name = temporary_from(file_name)) {
      // Where this machine is unknown, any name may belong to a local process.
      const bool is_here = own.machine.empty() || name->machine == hash_of(own.machine);
      gone =
          is_here ? is_gone({own.host, own.machine, name->process, name->started}) : folder_is_ours;
    } else if (const auto old = old_temporary_from(file_name); old && has_old) {
      // This process gives no such names, so such a file of its number is left over.
      gone = is_of_a_run(old->name) &&
             (old->process == own.process || is_gone({own.host, own.machine, old->process, 0}));
    }
    struct stat status{};
    if (!gone || ::lstat(entry.path().c_str(), &status) != 0) continue;
    if (S_ISREG(status.st_mode)) left.push_back(entry.path());
  }
  for (const fs::path& path : left) ::unlink(path.c_str());
}

}  // namespace longspan
