#include "longspan/train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "longspan/config/user_error.h"
#include "longspan/train/agreement.h"
#include "longspan/train/checkpoints.h"

namespace longspan {
namespace {

namespace fs = std::filesystem;

bool names_a_folder(const Config& config) {
  const std::string& wanted = config.resume_from_checkpoint;
  return !wanted.empty() && wanted != "true" && wanted != "false";
}

/// Folders to try, one a line, the best first. Rank 0's view is everyone's.
std::string candidates_of(const Config& config, const Launch& launch) {
  std::string folders;
  const bool by_itself = config.resume_from_checkpoint.empty() && config.overwrite_output_dir;
  for (const FoundCheckpoint& found : find_checkpoints(config.output_dir)) {
    if (!found.has_state) continue;
    const bool own = launch.is_restart && found.launch == launch.id;
    // Of a restart's own, whatever the configuration says to the first start.
    if (own ||
        (!by_itself && !names_a_folder(config) && config.resume_from_checkpoint != "false")) {
      folders += found.folder + "\n";
    }
  }
  if (names_a_folder(config)) folders += config.resume_from_checkpoint + "\n";
  return folders;
}

}  // namespace

bool goes_on_in(const Config& config) {
  const std::string& wanted = config.resume_from_checkpoint;
  if (wanted == "false") return false;
  if (names_a_folder(config)) {
    std::error_code error;
    if (!fs::exists(fs::path(wanted) / kTrainingStateFile, error)) {
      throw UserError(fmt::format(
          "resume_from_checkpoint: {} is not a checkpoint to go on from: it has no {}. Name a "
          "checkpoint-N folder; to start from its weights alone, give it as model_name_or_path.",
          wanted, kTrainingStateFile));
    }
    return fs::equivalent(fs::weakly_canonical(wanted, error).parent_path(), config.output_dir,
                          error);
  }
  if (wanted.empty() && config.overwrite_output_dir) return false;
  const bool found =
      std::ranges::any_of(find_checkpoints(config.output_dir), &FoundCheckpoint::has_state);
  if (!found && wanted == "true") {
    throw UserError(
        fmt::format("resume_from_checkpoint: true, but output_dir {} holds no checkpoint to go on "
                    "from. Remove the key to begin anew.",
                    config.output_dir));
  }
  return found;
}

std::optional<ResumePoint> find_resume_point(const Config& config, const Group& world,
                                             const Launch& launch, Console& console) {
  std::string mine;
  all_or_none(world, [&] {
    if (world.rank() == 0) mine = candidates_of(config, launch);
  });
  std::istringstream folders(world.gather_text(mine)[0]);
  std::string folder, broken;
  while (std::getline(folders, folder)) {
    const std::string problem = broken_part(world, folder);
    if (problem.empty()) {
      ResumePoint point{folder, {}};
      all_or_none(world, [&] { point.state = read_training_state(folder); });
      return point;
    }
    const std::string told = fmt::format("{} is broken: {}", folder, problem);
    if (folder == config.resume_from_checkpoint) {
      all_or_none(world, [&] { throw UserError(told + ". Name another checkpoint."); });
    }
    console.say(fmt::format("warning: {}; the one before it is tried.", told));
    broken += fmt::format("\n  {}", told);
  }
  if (!broken.empty()) {
    all_or_none(world, [&] {
      throw UserError(
          fmt::format("No checkpoint in output_dir {} is whole:{}\nNothing was touched. Set "
                      "overwrite_output_dir: true to begin anew, or choose another folder.",
                      config.output_dir, broken));
    });
  }
  return std::nullopt;
}

}  // namespace longspan
