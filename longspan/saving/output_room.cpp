#include "longspan/saving/output_room.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <sstream>
#include <thread>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/model_folder.h"
#include "longspan/files/atomic_file.h"
#include "longspan/liveness/agreement.h"
#include "longspan/registers/update_rule.h"
#include "longspan/report/tensorboard.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_folders.h"
#include "longspan/saving/resume.h"
#include "longspan/saving/saving.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/output_settings.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kPollInterval{0.2};
/// Interval in which all ranks exchange whether any got a signal.
constexpr Seconds kBetweenMeetings{1};
/// Seconds between two attempts; each pause is longer than the one before.
constexpr double kFirstPause = 1.0, kLongestPause = 60.0, kPauseGrows = 1.5;
/// After this time it tries even if statvfs reports too little space, since the report may be out
/// of date.
constexpr Seconds kAnyway{600};
/// Another machine that tries the same folder may remove it in between.
constexpr int kTries = 50;
/// Or may have made it again when we look.
constexpr int kTriesOfAnything = 3;
constexpr std::chrono::milliseconds kBetweenTries{10};
constexpr Seconds kSaidAgain{600};

/// Returns the folder, or its nearest existing parent.
fs::path nearest_existing(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

/// Runs try_folder for TensorBoard's folder, if report_to needs it. Throws UserError.
void try_tensorboard_folder(const OutputSettings& config) {
  if (!wants_tensorboard(config)) return;
  const std::string folder = tensorboard_folder(config);
  const bool own = folder.starts_with(config.output_dir + "/runs");
  try_folder(!config.logging_dir.empty() ? "logging_dir"
             : own                       ? "TensorBoard's folder in output_dir"
                                         : "TENSORBOARD_LOGGING_DIR",
             folder);
}

}  // namespace

void try_folder(const std::string& key, const std::string& folder) {
  std::error_code error;
  fs::path innermost = fs::absolute(folder, error).lexically_normal();
  if (!innermost.has_filename()) innermost = innermost.parent_path();
  int num_made = 0;  // number of created folders in the path, from the innermost up
  const auto count_missing = [&] {
    int num_missing = 0;
    for (fs::path path = innermost;
         !fs::exists(fs::symlink_status(path, error)) && path.has_relative_path();
         path = path.parent_path()) {
      ++num_missing;
    }
    num_made = std::max(num_made, num_missing);
  };
  const auto remove_made = [&] {
    std::error_code ignored;
    fs::path path = innermost;
    for (int i = 0; i < num_made; ++i, path = path.parent_path()) {
      fs::remove(path, ignored);  // only if it is empty
    }
  };
  try {
    for (int tries = 1;; ++tries) {
      count_missing();
      error.clear();
      fs::create_directories(folder, error);
      bool vanished = error == std::errc::no_such_file_or_directory;
      try {
        on_disk(folder, [&] {
          if (error) throw fs::filesystem_error("", error);
        });
        prove_writable(folder);
        break;
      } catch (const UserError&) {
        std::error_code ignored;
        vanished = vanished || !fs::exists(folder, ignored);
        if (tries >= (vanished ? kTries : kTriesOfAnything)) throw;
      }
      std::this_thread::sleep_for(kBetweenTries);
    }
  } catch (const UserError& failure) {
    remove_made();
    throw UserError(fmt::format("{} {} cannot be written to. {}", key, folder, failure.what()));
  }
  remove_made();
}

void try_output_dirs(const OutputSettings& config, const std::vector<SourceFolder>& sources) {
  try_folder("output_dir", config.output_dir);
  try_tensorboard_folder(config);
  if (!config.metrics_file.empty()) {
    try_folder("The folder of metrics_file", fs::absolute(config.metrics_file).parent_path());
  }
  const std::string& fallback = config.fallback_output_dir;
  if (fallback.empty()) return;
  std::error_code error;
  if (fs::weakly_canonical(fallback, error) == fs::weakly_canonical(config.output_dir, error)) {
    throw UserError(fmt::format(
        "fallback_output_dir {} is output_dir: name a folder on another disk, or remove the key.",
        fallback));
  }
  if (!goes_on_in(config)) {
    OutputSettings other = config;
    other.output_dir = fallback_folder(config);
    other.fallback_output_dir.clear();
    other.resume_from_checkpoint = "false";
    try {
      check_output_dir(other, sources);
    } catch (const UserError& refused) {
      throw UserError(
          fmt::format("fallback_output_dir would be used as output_dir: {}", refused.what()));
    }
  }
  try_folder("fallback_output_dir", fallback_folder(config));
}

std::optional<int64_t> free_bytes(const std::string& folder) {
  struct statvfs disk{};
  if (::statvfs(nearest_existing(folder).c_str(), &disk) != 0) return std::nullopt;
  // Some network file systems report nothing.
  if (disk.f_blocks == 0) return std::nullopt;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

Room room_in(const std::string& folder) { return {folder, free_bytes(folder)}; }

DiskFacts disk_facts(const OutputSettings& config, const UpdateRule& rule, const SavedModel& model,
                     bool rounds) {
  const auto saved_bytes = static_cast<int64_t>(c10::elementSize(model.dtype));
  DiskFacts facts{.saved_bytes = saved_bytes,
                  .only_model = config.save_only_model,
                  .rounded = rounds,
                  .num_found = std::ssize(find_checkpoints(config.output_dir)),
                  .limit = config.save_total_limit.value_or(0)};
  int64_t state_bytes = 0;
  for (const HeldParameter& parameter : model.all) {
    const int64_t size = parameter.spec.num_elements();
    if (parameter.trained) {
      facts.num_trained += size;
      state_bytes += rule.saved_bytes({parameter.spec, saved_bytes, /*trained=*/true});
    }
    if (!model.lora || parameter.trained) facts.saved_elements += size;
    // A tied head is saved twice with an adapter (save_adapter).
    const ParameterRole role = parameter.spec.role;
    const bool is_tied = role == ParameterRole::kEmbedding && model.config.spec.is_head(role);
    if (model.lora && parameter.trained && is_tied) facts.saved_elements += size;
  }
  facts.state_bytes =
      static_cast<double>(state_bytes) / std::max(1.0, static_cast<double>(facts.num_trained));
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"}) {
    std::error_code error;
    const auto size = fs::file_size(fs::path(model.source_folder) / name, error);
    if (!error) facts.other_bytes += static_cast<int64_t>(size);
  }
  return facts;
}

std::string check_room(const OutputSettings& config, const DiskFacts& facts) {
  std::optional<Room> fallback;
  if (!config.fallback_output_dir.empty()) fallback = room_in(fallback_folder(config));
  struct rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    check_file_size(facts, static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX)),
                    kMaxShardBytes);
  }
  return disk_account(facts, room_in(config.output_dir), fallback);
}

std::string warning_of_fallback(const OutputSettings& config) {
  if (config.fallback_output_dir.empty()) return "";
  struct stat one{}, other{};
  if (::stat(nearest_existing(config.output_dir).c_str(), &one) != 0 ||
      ::stat(nearest_existing(config.fallback_output_dir).c_str(), &other) != 0 ||
      one.st_dev != other.st_dev) {
    return "";
  }
  return fmt::format(
      "warning: fallback_output_dir {} is on the same disk as output_dir: when one is full so is "
      "the other.",
      config.fallback_output_dir);
}

std::string PatientSaver::save(const Saved& what, const std::vector<std::string>& folders,
                               const std::function<void(const std::string&)>& attempt) {
  // If the run was told to stop before, it saves because of that. The same signal may reach one
  // process after the other, so it does not end the wait. The program ends the process at a further
  // signal.
  const std::vector<bool> told = gather_answers(world_, control_.told_to_stop());
  const bool told_before = std::ranges::find(told, true) != told.end();
  // The folders that may get space some time, the best first.
  std::vector<std::string> left;
  std::istringstream lines(world_.gather_text(fmt::format("{}", fmt::join(folders, "\n")))[0]);
  for (std::string folder; std::getline(lines, folder);) left.push_back(folder);
  const std::vector<std::string> all = left;
  std::exception_ptr first;
  for (double pause = kFirstPause;; pause = std::min(kLongestPause, pause * kPauseGrows)) {
    const bool says = pause == kFirstPause;
    std::string reason;
    std::vector<std::string> full;
    for (const std::string& folder : left) {
      try {
        attempt(folder);
        // Removes the empty folders of failed attempts.
        std::error_code ignored;
        for (const std::string& other : all) {
          if (world_.rank() == 0 && other != folder && other != all[0]) fs::remove(other, ignored);
        }
        return folder;
      } catch (const std::exception& error) {
        if (!is_agreed(world_, error)) throw;
        const bool is_full = is_disk_full(error);
        if (folder == all[0] && (!first || !is_full)) first = std::current_exception();
        if (is_full) full.push_back(folder);
        if (reason.empty()) reason = error.what();
        const bool next = folder != left.back();
        if (all.size() > 1 && (says || !is_full)) {
          events_.say(fmt::format("warning: {} could not be saved in {}: {}{}", what.name, folder,
                                  error.what(),
                                  next ? fmt::format(" {} is tried.", left.back()) : ""));
        }
      }
    }
    left = full;
    if (left.empty()) std::rethrow_exception(first);
    if (says) {
      std::vector<std::string> rooms;
      for (const std::string& folder : left) {
        const std::optional<int64_t> free = free_bytes(folder);
        rooms.push_back(
            fmt::format("{} in {}", free ? name_bytes(*free) : "an unknown amount", folder));
      }
      events_.say(fmt::format(
          "warning: {} could not be saved: {}\nNothing is lost: it is kept in memory, and the run "
          "waits for room. It takes about {}. Free: {}. It is saved as soon as there is room{}. "
          "Ctrl-C or SIGTERM gives it up; {}.",
          what.name, reason, name_bytes(what.num_bytes), fmt::join(rooms, ", "),
          left.size() > 1 ? ", in one of both folders" : "", what.remains));
    }
    if (!wait_for_room(what, left, pause, told_before)) return "";
  }
}

bool PatientSaver::wait_for_room(const Saved& what, const std::vector<std::string>& folders,
                                 double pause, bool told_before) {
  const Clock::time_point start = Clock::now();
  Clock::time_point said = start;
  for (;;) {
    const auto gives_up = [&] {
      return control_.requested() || (!told_before && control_.told_to_stop());
    };
    const auto try_again = [&] {
      const Seconds waited = Clock::now() - start;
      const bool room = std::ranges::any_of(folders, [&](const std::string& folder) {
        return room_in(folder).may_take(what.num_bytes);
      });
      return waited.count() >= pause && (room || waited >= kAnyway);
    };
    // Rank 0 checks the space. A signal may reach any rank, so all ranks exchange their answers.
    bool tries = false;
    const Clock::time_point round = Clock::now();
    while (world_.rank() == 0 && !gives_up() && !(tries = try_again()) &&
           Clock::now() - round < kBetweenMeetings) {
      std::this_thread::sleep_for(kPollInterval);
    }
    if (world_.rank() == 0 && Clock::now() - said >= kSaidAgain) {
      said = Clock::now();
      events_.say(
          fmt::format("{} still waits for room in {}.", what.name, fmt::join(folders, " or ")));
    }
    notices_.wait_for_all();
    const std::vector<bool> ends = gather_answers(world_, gives_up());
    if (std::ranges::find(ends, true) != ends.end()) return false;
    if (gather_answers(world_, tries)[0]) return true;
  }
}

}  // namespace longspan
