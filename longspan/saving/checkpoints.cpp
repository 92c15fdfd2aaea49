#include "longspan/saving/checkpoints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/files/checksum_file.h"
#include "longspan/files/file_claim.h"
#include "longspan/files/left_temporary.h"
#include "longspan/files/written_names.h"
#include "longspan/input/input_file.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/output_folders.h"
#include "longspan/settings/output_settings.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return step;
}

/// Returns ".partial", ".replaced" or ".deleted" for a checkpoint's hidden name, also with a number
/// (".checkpoint-4.replaced-2"); empty for other names.
std::string hidden_kind(const std::string& name) {
  if (!name.starts_with(".")) return "";
  const size_t dot = name.rfind('.');
  std::string kind = name.substr(dot);
  if (const size_t dash = kind.find('-'); dash != std::string::npos) {
    if (dash + 1 == kind.size() ||
        kind.find_first_not_of("0123456789", dash + 1) != std::string::npos) {
      return "";
    }
    kind.resize(dash);
  }
  if (dot == 0 || (kind != ".partial" && kind != ".replaced" && kind != ".deleted")) return "";
  const std::string shown = name.substr(1, dot - 1);
  const std::optional<int64_t> step = step_of(shown);
  const bool is_ours = step && *step >= 0 && shown == fmt::format("{}{}", kPrefix, *step);
  return is_ours ? kind : "";
}

double seconds_since_1970(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return 0.0;
  return std::chrono::duration<double>(std::chrono::file_clock::to_sys(time).time_since_epoch())
      .count();
}

void newest_first(std::vector<FoundCheckpoint>& found) {
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    return std::pair(a.saved_at, a.step) > std::pair(b.saved_at, b.step);
  });
}

/// Removes a checkpoint, unless a run is about to resume from it or it holds foreign files. Such a
/// checkpoint stays until the next time.
void remove_checkpoint(const std::string& folder, const std::string& name) {
  // A partly removed folder must not be visible under the final name.
  const std::string hidden =
      fmt::format("{}/.{}.deleted", fs::path(folder).parent_path().string(), name);
  {
    const FileClaim claim(folder + "/" + kChecksumFile, FileClaim::Kind::kRemove);
    if (claim.refused() || !foreign_entry(folder).empty()) return;
    remove_own_folder(hidden);
    std::error_code error;
    if (fs::exists(fs::symlink_status(hidden, error))) return;  // it is being read
    fs::rename(folder, hidden);
  }
  // The claim is closed by now: a network disk keeps an open file, and with it the folder.
  remove_own_folder(hidden);
}

}  // namespace

std::vector<FoundCheckpoint> find_checkpoints(const std::string& output_dir) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    const std::optional<int64_t> step = step_of(entry.path().filename());
    if (!step || !entry.is_directory(error)) continue;
    FoundCheckpoint checkpoint{.folder = entry.path().string(),
                               .step = *step,
                               .saved_at = seconds_since_1970(entry.path()),
                               .has_state = fs::exists(entry.path() / kTrainingStateFile, error) ||
                                            fs::exists(entry.path() / kStateFolder, error),
                               .launch = "",
                               .job = ""};
    try {
      const TrainingState state = read_training_state(checkpoint.folder);
      checkpoint.saved_at = state.saved_at;
      checkpoint.launch = state.launch;
      checkpoint.job = state.job;
    } catch (const UserError&) {  // broken, or the model alone
    }
    found.push_back(std::move(checkpoint));
  }
  newest_first(found);
  return found;
}

std::vector<FoundCheckpoint> find_checkpoints(const OutputSettings& config) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& folder : output_folders(config)) {
    for (FoundCheckpoint& checkpoint : find_checkpoints(folder)) {
      found.push_back(std::move(checkpoint));
    }
  }
  newest_first(found);
  return found;
}

std::string name_for_replaced(const std::string& output_dir, const std::string& name) {
  for (int number = 1;; ++number) {
    std::string path = fmt::format("{}/.{}.replaced", output_dir, name);
    if (number > 1) path += fmt::format("-{}", number);
    remove_own_folder(path);
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) return path;
  }
}

void put_back_replaced(const std::string& output_dir) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    const std::string name = entry.path().filename();
    if (hidden_kind(name) != ".replaced" || !fs::is_directory(entry.symlink_status(error)))
      continue;
    const fs::path final_path = entry.path().parent_path() / name.substr(1, name.rfind('.') - 1);
    // The run was killed between two renames: this checkpoint is complete, and the new one was not
    // in place yet. An empty leftover of a removed checkpoint on a network disk does not count.
    if (!fs::exists(fs::symlink_status(final_path, error)) && holds_files(entry.path())) {
      fs::rename(entry.path(), final_path, error);
    }
  }
}

void remove_leftovers(const std::string& output_dir) {
  std::error_code error;
  std::vector<std::string> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(output_dir, error)) {
    const std::string name = entry.path().filename();
    if (!hidden_kind(name).empty() || name == kUnfinishedModel) {
      folders.push_back(entry.path().string());
    }
  }
  for (const std::string& folder : folders) require_own_folder(folder);
  for (const std::string& folder : folders) remove_own_folder(folder);
  remove_left_temporaries(output_dir, /*folder_is_ours=*/true);
}

std::string broken_part(const Group& world, Notices& notices, const std::string& folder) {
  // If a rank does not see the folder, or sees another one, this is no sign of a broken checkpoint.
  std::string table;
  try {
    table = read_text_file(folder + "/" + kChecksumFile, "table of checksums", kMaxTableBytes);
  } catch (const UserError&) {
  }
  Xxh64 hash;
  hash.add(table.data(), table.size());
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  const std::vector<std::string> seen =
      world.gather_text(fmt::format("{:x} {}", hash.value(), host));
  const auto first_word = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  for (int rank = 0; rank < world.size(); ++rank) {
    if (first_word(seen[rank]) == first_word(seen[0])) continue;
    all_or_none(world, [&] {
      throw UserError(fmt::format(
          "rank {} on host {} does not see the {} that rank 0 sees. To go on from a checkpoint, "
          "output_dir must be on a disk that all processes share.",
          rank, seen[rank].substr(seen[rank].find(' ') + 1), folder));
    });
  }
  const std::string mine = broken_file(folder, world.rank(), world.size());
  notices.wait_for_all();
  for (const std::string& problem : world.gather_text(mine)) {
    if (!problem.empty()) return problem;
  }
  return "";
}

std::string checkpoint_name(int64_t step) { return fmt::format("{}{}", kPrefix, step); }

void remove_old_checkpoints(const std::string& output_dir, const std::string& newest,
                            int64_t limit) {
  if (limit == 0) return;
  const UninterruptedScope uninterrupted;
  int64_t kept = 1;
  for (const FoundCheckpoint& found : find_checkpoints(output_dir)) {
    const std::string name = fs::path(found.folder).filename();
    if (name != newest && kept++ >= limit) remove_checkpoint(found.folder, name);
  }
}

SavedCheckpoint Checkpoints::save(const std::string& output_dir, int64_t step,
                                  const CheckpointContent& content) {
  CheckpointWrite write({output_dir, step}, content, config_, saver_, world_, notices_,
                        /*copies=*/nullptr);
  bool goes_on = true;
  while (goes_on) {
    all_or_none_patiently(world_, notices_, write.work());
    goes_on = write.go_on();
    if (write.is_placed()) last_ = write.folder();
  }
  return {write.folder(), write.num_bytes()};
}

std::unique_ptr<CheckpointWrite> Checkpoints::begin(const std::string& output_dir, int64_t step,
                                                    const CheckpointContent& content,
                                                    HostCopies& copies) const {
  return std::make_unique<CheckpointWrite>(CheckpointPlace{output_dir, step}, content, config_,
                                           saver_, world_, notices_, &copies);
}

}  // namespace longspan
