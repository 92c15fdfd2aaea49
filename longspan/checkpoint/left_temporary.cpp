#include "longspan/checkpoint/left_temporary.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <vector>

#include "longspan/checkpoint/checksum.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = ".longspan-", kEnd = ".partial";
/// A name of the file system has 255 bytes at most; so many of the final one are told.
constexpr size_t kMostOfName = 120;

std::string hash_of(const std::string& machine) {
  Xxh64 hash;
  hash.add(machine.data(), machine.size());
  return fmt::format("{:08x}", hash.value() >> 32);
}

/// Takes ".WORD" from the end of `text`.
std::string last_part(std::string_view& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return "";
  const std::string part(text.substr(dot + 1));
  text = text.substr(0, dot);
  return part;
}

/// As it is printed: digits alone, no zero before others.
std::optional<int64_t> number_from(const std::string& text) {
  int64_t number = -1;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end || std::to_string(number) != text || number < 0) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

std::string temporary_name(std::string_view name) {
  // Several threads of one process may write files of one name.
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

void remove_left_temporaries(const std::string& folder, bool folder_is_ours) {
  std::error_code error;
  std::vector<fs::path> left;
  const ProcessIdentity own = own_process();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::optional<TemporaryName> name = temporary_from(entry.path().filename());
    if (!name) continue;
    const bool is_here = name->machine == hash_of(own.machine);
    const bool gone =
        is_here ? is_gone({own.host, own.machine, name->process, name->started}) : folder_is_ours;
    struct stat status{};
    if (!gone || ::lstat(entry.path().c_str(), &status) != 0) continue;
    if (S_ISREG(status.st_mode)) left.push_back(entry.path());
  }
  for (const fs::path& path : left) ::unlink(path.c_str());
}

}  // namespace longspan
