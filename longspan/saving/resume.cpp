#include "longspan/saving/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "longspan/base/user_error.h"
#include "longspan/checkpoint/state_parts.h"
#include "longspan/files/checksum_file.h"
#include "longspan/liveness/agreement.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/saving/output_folders.h"
#include "longspan/settings/choices.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

bool names_a_folder(const OutputSettings& config) {
  return resume_from(config) == ResumeFrom::kFolder;
}

/// Returns the folders to try, one per line, the best first. All ranks use rank 0's list.
std::string candidates_of(const OutputSettings& config, const Launch& launch) {
  std::string folders;
  for (const FoundCheckpoint& found : find_checkpoints(config)) {
    if (!found.has_state) continue;
    const bool own = launch.is_restart && found.launch == launch.id;
    // A restart tries its own launch's checkpoints, whatever the configuration said for the first
    // start.
    if (own || goes_on_by_itself(config)) folders += found.folder + "\n";
  }
  if (names_a_folder(config)) folders += config.resume_from_checkpoint + "\n";
  return folders;
}

/// As broken_part: returns why the state cannot be read although its checksums are right.
std::string read_state(const Group& world, const std::string& folder, TrainingState& state) {
  std::string mine;
  try {
    state = read_training_state(folder);
    const StateReader readable(folder);
  } catch (const UserError& error) {
    mine = error.what();
  }
  for (const std::string& problem : world.gather_text(mine)) {
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace

bool goes_on_in(const OutputSettings& config) {
  const std::string& wanted = config.resume_from_checkpoint;
  if (!launch_before_requeue(config).empty()) return true;
  const ResumeFrom from = resume_from(config);
  if (from == ResumeFrom::kNothing) return false;
  if (from == ResumeFrom::kFolder) {
    std::error_code error;
    if (!fs::exists(fs::path(wanted) / kTrainingStateFile, error)) {
      throw UserError(fmt::format(
          "resume_from_checkpoint: {} cannot be resumed from: it has no {}. Name a "
          "checkpoint-N folder; to start from its weights alone, give it as model_name_or_path.",
          wanted, kTrainingStateFile));
    }
    const fs::path beside = fs::weakly_canonical(wanted, error).parent_path();
    return std::ranges::any_of(output_folders(config), [&](const std::string& folder) {
      return fs::equivalent(beside, folder, error);
    });
  }
  const bool found = std::ranges::any_of(find_checkpoints(config), &FoundCheckpoint::has_state);
  if (!found && from == ResumeFrom::kNewest) {
    throw UserError(
        fmt::format("resume_from_checkpoint: true, but output_dir {} holds no checkpoint to "
                    "resume from. Remove the key to begin anew.",
                    config.output_dir));
  }
  return found;
}

std::optional<ResumePoint> find_resume_point(const OutputSettings& config, const Group& world,
                                             Notices& notices, const Launch& launch,
                                             Events& events) {
  std::string mine;
  all_or_none(world, [&] {
    if (world.rank() == 0) mine = candidates_of(config, launch);
  });
  std::istringstream folders(world.gather_text(mine)[0]);
  std::string folder, broken;
  while (std::getline(folders, folder)) {
    ResumePoint point{folder, {}};
    if (world.rank() == 0) {
      point.in_use =
          std::make_shared<FileClaim>(folder + "/" + kChecksumFile, FileClaim::Kind::kRead);
    }
    std::string problem = broken_part(world, notices, folder);
    const std::string unusable = problem.empty() ? "cannot be resumed from" : "is broken";
    if (problem.empty()) problem = read_state(world, folder, point.state);
    if (problem.empty()) {
      if (names_a_folder(config) && folder != config.resume_from_checkpoint) {
        events.say(
            fmt::format("resume_from_checkpoint names {}. That is for the first start; this is a "
                        "restart of that run, which has saved {} since.",
                        config.resume_from_checkpoint, folder));
      }
      return point;
    }
    const std::string told = fmt::format("{} {}: {}", folder, unusable, problem);
    if (folder == config.resume_from_checkpoint) {
      all_or_none(world, [&] { throw UserError(told + ". Name another checkpoint."); });
    }
    events.say(fmt::format("warning: {}; the one before it is tried.", told));
    broken += fmt::format("\n  {}", told);
  }
  if (!broken.empty()) {
    all_or_none(world, [&] {
      throw UserError(fmt::format(
          "No checkpoint in output_dir {} can be resumed from:{}\nNothing was changed. Set "
          "overwrite_output_dir: true to begin anew, or choose another folder.",
          config.output_dir, broken));
    });
  }
  return std::nullopt;
}

}  // namespace longspan
