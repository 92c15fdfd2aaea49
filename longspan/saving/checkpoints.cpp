#include "longspan/saving/checkpoints.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>
#include <thread>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/files/atomic_file.h"
#include "longspan/files/checksum_file.h"
#include "longspan/files/file_claim.h"
#include "longspan/files/left_temporary.h"
#include "longspan/files/written_names.h"
#include "longspan/input/input_file.h"
#include "longspan/liveness/agreement.h"
#include "longspan/liveness/unfinished.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/sharded_saving.h"
#include "longspan/settings/output_settings.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";
/// Shards with fewer elements per rank than this are not divided.
constexpr int64_t kLeastShared = 1024;

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

double now_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void newest_first(std::vector<FoundCheckpoint>& found) {
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    return std::pair(a.saved_at, a.step) > std::pair(b.saved_at, b.step);
  });
}

/// Returns a time later than that of every existing checkpoint, so that "newest" is right even if
/// the clock went back.
double saving_time(const OutputSettings& config) {
  double time = now_since_1970();
  for (const FoundCheckpoint& found : find_checkpoints(config)) {
    time = std::max(time, found.saved_at + 1e-3);
  }
  return time;
}

/// Waits until the folder is visible: on a network disk, a folder that rank 0 has just made may
/// appear late.
bool appears(const std::string& folder) {
  std::error_code error;
  for (int i = 0; i < 10; ++i) {
    if (fs::is_directory(folder, error)) return true;
    for (const auto& entry : fs::directory_iterator(fs::path(folder).parent_path(), error)) {
      static_cast<void>(entry);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

std::string run_name(const StateSource& state) {
  return fmt::format("{} {} {}", state.parameter, state.begin, state.end);
}

/// As broken_part, computed by the ranks that see the folder.
std::string read_back(const Group& world, Notices& notices, const std::string& folder) {
  std::error_code error;
  const bool sees_it = fs::is_directory(folder, error);
  int number = 0, num_readers = 0;
  const std::vector<bool> sees = gather_answers(world, sees_it);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (rank == world.rank()) number = num_readers;
    if (sees[rank]) ++num_readers;
  }
  const std::string mine = sees_it ? broken_file(folder, number, num_readers, ReadFrom::kDisk) : "";
  notices.wait_for_all();
  for (const std::string& problem : world.gather_text(mine)) {
    if (!problem.empty()) return problem;
  }
  return "";
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

/// Removes the checkpoint that a new one has replaced. If it holds foreign files, it stays under a
/// visible name.
void remove_replaced(const std::string& folder, const std::string& shown) {
  if (foreign_entry(folder).empty()) return remove_own_folder(folder);
  std::error_code error;
  std::string kept = shown + ".kept";
  for (int number = 2; fs::exists(fs::symlink_status(kept, error)); ++number) {
    kept = fmt::format("{}.kept-{}", shown, number);
  }
  fs::rename(folder, kept);
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

std::string Checkpoints::write_part(const std::string& folder,
                                    const std::vector<StateSource>& states) const {
  const std::vector<bool> sees_it = gather_answers(world_, appears(folder));
  std::string mine;
  for (const StateSource& state : states) mine += run_name(state) + "\n";
  int num_writers = 0, my_number = -1;              // among the ranks that see the folder
  std::map<std::string, std::vector<int>> holders;  // of each shard, as indices of writers
  const std::vector<std::string> texts = world_.gather_text(mine);
  for (int rank = 0; rank < world_.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    const bool writes = sees_it[rank];
    for (std::string line; std::getline(lines, line);) {
      auto& places = holders[line];
      if (writes) places.push_back(num_writers);
    }
    if (!writes) continue;
    if (rank == world_.rank()) my_number = num_writers;
    ++num_writers;
  }
  std::string name;
  all_or_none_patiently(world_, notices_, [&] {
    for (const auto& [run, places] : holders) {
      if (!places.empty()) continue;
      throw UserError(fmt::format(
          "{} cannot be written: no process that holds the optimizer's state of {} sees that "
          "folder. With states that are divided among processes, output_dir must be on a disk that "
          "all of them share.",
          folder, run.substr(0, run.find(' '))));
    }
    if (my_number < 0) return;
    std::vector<StateSource> share;
    for (const StateSource& state : states) {
      const auto run = holders.find(run_name(state));
      const std::vector<int>& places = run->second;
      const int64_t size = state.end - state.begin, parts = std::ssize(places);
      const int64_t part = std::ranges::find(places, my_number) - places.begin();
      if (size < kLeastShared * parts) {
        // One of the holders, in turn, writes the whole shard.
        if (std::distance(holders.begin(), run) % parts == part) share.push_back(state);
      } else {
        share.push_back(part_of(state, state.begin + size * part / parts,
                                state.begin + size * (part + 1) / parts));
      }
    }
    name = state_part_name(my_number + 1, num_writers);
    write_state_part(folder + "/" + name, share);
  });
  return name;
}

std::string Checkpoints::save(const std::string& output_dir, int64_t step,
                              const CheckpointContent& content) {
  const bool is_main = world_.rank() == 0;
  const std::string name = fmt::format("{}{}", kPrefix, step);
  const std::string target = output_dir + "/" + name;
  const std::string path = fmt::format("{}/.{}.partial", output_dir, name);
  std::optional<TemporaryFolder> temporary;
  all_or_none_patiently(world_, notices_, [&] {
    if (!is_main) return;
    temporary.emplace(path);
    if (content.state) {
      on_disk(path, [&] { fs::create_directory(path + "/" + kStateFolder); });
    }
    if (content.sharded == nullptr) saver_.write_model(path, content.parameters);
    on_disk(path, [&] { content.add_files(path); });
    if (!content.state) return;
    TrainingState state = *content.state;
    state.saved_at = saving_time(config_);
    write_training_state(path, state);
  });
  std::string weights;
  if (content.sharded) {
    weights = write_sharded_model(path, saver_.model(), *content.sharded, world_, notices_);
  }
  const std::string part = content.state ? write_part(path, content.states) : "";
  ChecksumTable mine;
  all_or_none_patiently(world_, notices_, [&] {
    for (const std::string& name : {weights, part}) {
      if (!name.empty()) mine[name] = checksum_of_file(path + "/" + name);
    }
  });
  const std::vector<std::string> tables = world_.gather_text(table_text(mine));
  all_or_none_patiently(world_, notices_, [&] {
    if (!is_main) return;
    const UninterruptedScope uninterrupted;
    on_disk(target, [&] {
      ChecksumTable table;
      for (const std::string& text : tables) table.merge(table_from(text));
      table.merge(checksums_of(path, table));
      if (content.state) sync_folder(path + "/" + kStateFolder);
      write_checksum_file(path, table);
      const std::string replaced = name_for_replaced(output_dir, name);
      sync_folder(path);
      put_in_place(path, target, replaced);
      remove_replaced(replaced, target);
    });
  });
  last_ = target;
  if (config_.save_total_limit) {
    // Older checkpoints stay until the new one has been read back.
    const std::string problem = read_back(world_, notices_, target);
    all_or_none_patiently(world_, notices_, [&] {
      if (!problem.empty()) {
        throw UserError(fmt::format("{} does not read back as it was written: {}. Check the disk.",
                                    target, problem));
      }
      if (is_main) on_disk(output_dir, [&] { remove_old(output_dir, target); });
    });
  }
  return target;
}

void Checkpoints::remove_old(const std::string& output_dir, const std::string& newest) const {
  const int64_t limit = config_.save_total_limit.value_or(0);
  if (limit == 0) return;
  const UninterruptedScope uninterrupted;
  int64_t kept = 1;
  for (const FoundCheckpoint& found : find_checkpoints(output_dir)) {
    if (fs::path(found.folder).filename() == fs::path(newest).filename()) continue;
    if (kept++ >= limit) remove_checkpoint(found.folder, fs::path(found.folder).filename());
  }
}

}  // namespace longspan
