#include "longspan/account/disk_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "longspan/base/user_error.h"
#include "longspan/input/numbers.h"
#include "longspan/text/bytes.h"

namespace longspan {
namespace {

constexpr int64_t kMaster = 4;

}  // namespace

DiskNeed disk_need(const DiskFacts& facts) {
  DiskNeed need;
  need.model = facts.saved_elements * facts.saved_bytes + facts.other_bytes;
  need.checkpoint = need.model;
  if (!facts.only_model) {
    need.checkpoint += std::llround(static_cast<double>(facts.num_trained) * facts.state_bytes) +
                       (facts.rounded ? facts.num_trained * kMaster : 0);
  }
  const int64_t all = facts.num_found + facts.num_saves;
  const bool limited = facts.limit > 0 && facts.num_saves > 0;
  need.num_retained = limited ? std::min(all, facts.limit) : all;
  // While a checkpoint is written, the ones to keep and the oldest one exist too.
  const int64_t at_once = limited ? std::min(all, std::max(facts.limit, facts.num_found) + 1) : all;
  const auto bytes_of = [&](int64_t checkpoints) {  // the product may exceed any disk
    return std::min(product_of({checkpoints, need.checkpoint}).value_or(INT64_MAX), INT64_MAX / 4);
  };
  need.most = std::max({bytes_of(at_once - facts.num_found),
                        bytes_of(need.num_retained - facts.num_found) + need.model,
                        facts.num_saves == 0 ? need.model : int64_t{0}});
  return need;
}

int64_t num_saves(Interval strategy, int64_t save_steps, int64_t from, int64_t total_steps,
                  int64_t steps_per_epoch) {
  if (from >= total_steps) return 0;
  switch (strategy) {
    case Interval::kNever:
      return 0;
    case Interval::kSteps:
      return total_steps / save_steps - from / save_steps;
    case Interval::kEpoch: {
      const int64_t ends = total_steps / steps_per_epoch - from / steps_per_epoch;
      return ends + (total_steps % steps_per_epoch == 0 ? 0 : 1);  // the last step ends one too
    }
  }
  throw std::logic_error("a strategy without an interval");
}

void check_file_size(const DiskFacts& facts, std::optional<int64_t> limit, int64_t shard_bytes) {
  const int64_t weights =
      facts.saved_elements * facts.saved_bytes / (facts.sharded ? facts.num_processes : 1);
  int64_t file = weights <= shard_bytes ? weights : shard_bytes / 2;
  if (facts.num_saves > 0) {
    const DiskNeed need = disk_need(facts);
    file = std::max(file, (need.checkpoint - need.model) / facts.num_processes);
  }
  if (!limit || *limit >= file) return;
  throw UserError(fmt::format(
      "What is saved has files of {} and more, and this process may write none larger than {} "
      "(ulimit -f). Raise the limit (ulimit -f unlimited) and start again.",
      name_bytes(file), name_bytes(*limit)));
}

std::string disk_account(const DiskFacts& facts, const Room& output_dir,
                         const std::optional<Room>& fallback) {
  if (!output_dir.free) return "";
  const int64_t free = *output_dir.free;
  const DiskNeed need = disk_need(facts);
  if (!output_dir.may_take(need.model) && !(fallback && fallback->may_take(need.model))) {
    const std::string elsewhere = fallback
                                      ? fmt::format(", {} in {} of fallback_output_dir",
                                                    name_bytes(*fallback->free), fallback->folder)
                                      : "";
    throw UserError(fmt::format(
        "The trained model takes {} on disk, and {} are free in output_dir {}{}. Nothing was "
        "trained. Free some space, choose an output_dir on another disk, or name one in "
        "fallback_output_dir.",
        name_bytes(need.model), name_bytes(free), output_dir.folder, elsewhere));
  }
  std::string text = fmt::format("Disk: the model takes {}", name_bytes(need.model));
  if (facts.num_saves > 0) {
    text += fmt::format(", {} checkpoint{} {}{}", facts.num_saves, facts.num_saves == 1 ? "" : "s",
                        name_bytes(need.checkpoint), facts.num_saves == 1 ? "" : " each");
    if (need.num_retained < facts.num_saves) text += fmt::format(" ({} kept)", need.num_retained);
  }
  text += fmt::format(": at most {} more; {} are free in {}.", name_bytes(need.most),
                      name_bytes(free), output_dir.folder);
  if (free >= need.most) return text;
  // The number of checkpoints that fit in addition to the model and the checkpoint being written.
  const int64_t fit =
      std::max<int64_t>(0, free - need.model) / std::max<int64_t>(1, need.checkpoint) +
      facts.num_found - 1;
  text +=
      "\nwarning: that is not enough. A checkpoint that does not fit is left out with a word, "
      "and the run goes on; the trained model waits for room, or goes to fallback_output_dir.";
  if (facts.num_saves == 0) return text + " Free some space.";
  text += " What helps: ";
  if (fit >= 1) text += fmt::format("save_total_limit: {}, ", fit);
  if (!facts.only_model) text += "save_only_model: true (to start from, not to go on from), ";
  text +=
      "a larger save_steps, save_strategy: no, another disk. (Quotas of a user or a folder "
      "cannot be seen: there may be less than that.)";
  return text;
}

}  // namespace longspan
