#include "longspan/train/output_room.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <thread>
#include <vector>

#include "longspan/checkpoint/atomic_file.h"
#include "longspan/config/user_error.h"
#include "longspan/train/agreement.h"
#include "longspan/train/checkpoints.h"
#include "longspan/train/resume.h"
#include "longspan/train/saving.h"
#include "longspan/train/tensorboard.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kBetweenLooks{0.2};
/// Between two attempts; each pause is longer than the one before.
constexpr double kFirstPause = 1.0, kLongestPause = 60.0, kPauseGrows = 1.5;
/// statvfs says that there is too little: it may know less than the disk.
constexpr Seconds kAnyway{600};
constexpr Seconds kSaidAgain{600};

/// The folder, or the nearest one above it that is there.
fs::path nearest_existing(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

}  // namespace

void try_folder(const std::string& key, const std::string& folder) {
  // Those that are made here, the innermost first.
  std::vector<fs::path> made;
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  for (; !fs::exists(fs::symlink_status(path, error)) && path.has_relative_path();
       path = path.parent_path()) {
    made.push_back(path);
  }
  const auto remove_made = [&] {
    std::error_code ignored;
    for (const fs::path& one : made) fs::remove(one, ignored);  // only if it is empty
  };
  try {
    on_disk(folder, [&] { fs::create_directories(folder); });
    const std::string probe = fmt::format("{}/.longspan-can-write", folder);
    write_file_atomically(probe, "yes\n");
    fs::remove(probe, error);
  } catch (const UserError& failure) {
    remove_made();
    throw UserError(fmt::format("{} {} cannot be written to. {}", key, folder, failure.what()));
  }
  remove_made();
}

void try_output_dirs(const Config& config) {
  try_folder("output_dir", config.output_dir);
  try_tensorboard_folder(config);
  const std::string& fallback = config.fallback_output_dir;
  if (fallback.empty()) return;
  std::error_code error;
  if (fs::weakly_canonical(fallback, error) == fs::weakly_canonical(config.output_dir, error)) {
    throw UserError(fmt::format(
        "fallback_output_dir {} is output_dir: name a folder on another disk, or remove the key.",
        fallback));
  }
  if (!goes_on_in(config)) {
    Config other = config;
    other.output_dir = fallback;
    other.fallback_output_dir.clear();
    other.resume_from_checkpoint = "false";
    try {
      check_output_dir(other);
    } catch (const UserError& refused) {
      throw UserError(fmt::format("fallback_output_dir, taken as output_dir: {}", refused.what()));
    }
  }
  try_folder("fallback_output_dir", fallback);
}

int64_t free_bytes(const std::string& folder) {
  struct statvfs disk{};
  if (::statvfs(nearest_existing(folder).c_str(), &disk) != 0) return -1;
  // Some file systems of the network know nothing of themselves.
  if (disk.f_blocks == 0) return -1;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

DiskFacts disk_facts(const Config& config, const std::vector<NamedTensor>& parameters, bool adapter,
                     int64_t saved_bytes) {
  DiskFacts facts{.saved_bytes = saved_bytes,
                  .only_model = config.save_only_model,
                  .rounded = saved_bytes < 4 && !config.pure_bf16,
                  .num_found = std::ssize(find_checkpoints(config.output_dir)),
                  .limit = config.save_total_limit.value_or(0)};
  for (const auto& [name, tensor] : parameters) {
    const bool trains = tensor.requires_grad();
    if (trains) facts.num_trained += tensor.numel();
    if (!adapter || trains) facts.saved_elements += tensor.numel();
  }
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"}) {
    std::error_code error;
    const auto size = fs::file_size(fs::path(config.model_name_or_path) / name, error);
    if (!error) facts.other_bytes += static_cast<int64_t>(size);
  }
  return facts;
}

std::string check_room(const Config& config, const DiskFacts& facts) {
  const int64_t free = free_bytes(config.output_dir);
  if (free < 0) return "";
  const std::string& fallback = config.fallback_output_dir;
  return disk_account(facts, config.output_dir, free, fallback.empty() ? -1 : free_bytes(fallback));
}

std::string warning_of_fallback(const Config& config) {
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

std::string PatientSaver::save(const Saved& what,
                               const std::function<void(const std::string&)>& attempt) {
  bool falls_back = !config_.fallback_output_dir.empty();
  double pause = kFirstPause;
  for (;;) {
    std::exception_ptr failure;
    std::string reason;
    bool full = false;
    const auto try_into = [&](const std::string& folder) {
      try {
        attempt(folder);
        return true;
      } catch (const std::exception& error) {
        if (!is_agreed(world_, error)) throw;
        failure = std::current_exception();
        reason = error.what();
        full = is_disk_full(error);
        return false;
      }
    };
    if (try_into(config_.output_dir)) return config_.output_dir;
    if (falls_back) {
      const std::exception_ptr first = failure;
      const std::string first_reason = reason;
      const bool first_full = full;
      const bool says = pause == kFirstPause;
      if (says) {
        console_.say(
            fmt::format("warning: {} could not be saved in output_dir: {} "
                        "fallback_output_dir {} is tried.",
                        what.name, reason, config_.fallback_output_dir));
      }
      if (try_into(config_.fallback_output_dir)) return config_.fallback_output_dir;
      if (says) {
        console_.say(fmt::format("warning: fallback_output_dir cannot be used: {}", reason));
      }
      falls_back = full;  // what is no full disk stays so
      failure = first;
      reason = first_reason;
      full = first_full;
    }
    if (!full) std::rethrow_exception(failure);
    if (pause == kFirstPause) {
      console_.say(fmt::format(
          "warning: {} could not be saved: {}\nNothing is lost: it is kept in memory, and the run "
          "waits for room. It takes {}; {} are free in {}. It is saved as soon as there is room{}. "
          "Ctrl-C gives it up; {}.",
          what.name, reason, name_bytes(what.num_bytes),
          name_bytes(std::max<int64_t>(0, free_bytes(config_.output_dir))), config_.output_dir,
          falls_back ? ", in one of both folders" : "",
          what.last_kept.empty() ? "no checkpoint has been saved"
                                 : "the last checkpoint is " + what.last_kept));
    }
    if (!wait_for_room(what, pause)) return "";
    pause = std::min(kLongestPause, pause * kPauseGrows);
  }
}

bool PatientSaver::wait_for_room(const Saved& what, double pause) {
  bool goes_on = true;
  if (world_.rank() == 0) {
    const Clock::time_point start = Clock::now();
    Clock::time_point said = start;
    const auto has_room = [&](const std::string& folder) {
      const int64_t free = folder.empty() ? 0 : free_bytes(folder);
      return free < 0 || free >= what.num_bytes;
    };
    for (;;) {
      if (interrupts_.requested()) {
        goes_on = false;
        break;
      }
      const Seconds waited = Clock::now() - start;
      const bool room = has_room(config_.output_dir) || has_room(config_.fallback_output_dir);
      if (waited.count() >= pause && (room || waited >= kAnyway)) break;
      if (Clock::now() - said >= kSaidAgain) {
        said = Clock::now();
        console_.say(fmt::format("{} still waits for room in {}.", what.name, config_.output_dir));
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
  notices_.wait_for_all();
  return world_.gather_text(goes_on ? "on" : "off")[0] == "on";
}

}  // namespace longspan
