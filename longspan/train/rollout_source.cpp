#include "longspan/train/rollout_source.h"

#include <sstream>
#include <stdexcept>
#include <utility>

#include "longspan/base/user_error.h"
#include "longspan/data/bad_rows.h"
#include "longspan/rollouts/rollout_examples.h"
#include "longspan/rollouts/rollout_line.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/settings/policy_settings.h"

namespace longspan {
namespace {

/// Precedes rank 0's rollouts; without it, the run was asked to stop.
constexpr const char* kHead = "rollouts\n";

std::string text_of(const std::optional<std::vector<Rollout>>& rollouts) {
  if (!rollouts) return "";
  std::string text = kHead;
  for (const Rollout& rollout : *rollouts) text += write_rollout(rollout) + "\n";
  return text;
}

/// Returns the groups of rank 0's text. A group's rollouts follow each other.
std::vector<RolloutGroup> groups_from(const std::string& text, int64_t num_generations) {
  std::istringstream lines(text);
  std::vector<RolloutGroup> groups;
  std::string line;
  std::getline(lines, line);
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    Rollout rollout = parse_rollout(line, "the rollouts of rank 0", number, {});
    if (groups.empty() || groups.back().name != rollout.group ||
        std::ssize(groups.back().rollouts) == num_generations) {
      groups.push_back({rollout.group, {}});
    }
    groups.back().rollouts.push_back(std::move(rollout));
  }
  return groups;
}

}  // namespace

RolloutSource::RolloutSource(const PolicySettings& policy, const OptimizationSettings& optimization,
                             int64_t cutoff_len, const Mesh& mesh,
                             std::unique_ptr<RolloutMaker> maker)
    : policy_(policy),
      optimization_(optimization),
      cutoff_len_(cutoff_len),
      mesh_(mesh),
      maker_(std::move(maker)),
      groups_of_row_(optimization.per_device_train_batch_size),
      groups_of_step_(groups_of_row_ * mesh.data.size() *
                      optimization.gradient_accumulation_steps) {}

bool RolloutSource::prepare(int64_t step) {
  const int64_t number = step / policy_.num_iterations;
  if (number == number_) return true;
  const std::string own =
      text_of(maker_->make(number, groups_of_step_, number * policy_.num_iterations,
                           /*is_begun=*/step % policy_.num_iterations != 0));
  const std::string text =
      mesh_.world.gather_text(mesh_.world.rank() == 0 ? own : std::string())[0];
  if (text.empty()) return false;
  groups_.clear();
  const std::vector<RolloutGroup> groups = groups_from(text, policy_.num_generations);
  const RolloutEncoding encoding{.cutoff_len = cutoff_len_,
                                 .columns = columns_of(groups),
                                 .masks_truncated = policy_.mask_truncated_completions};
  BadRows bad;
  for (const RolloutGroup& group : groups) {
    RolloutExample encoded = encode_rollouts(group, encoding, bad);
    Example& example = encoded.example;
    example.rewards = std::move(encoded.rewards);
    example.num_truncated = encoded.num_truncated;
    example.number = number * groups_of_step_ + std::ssize(groups_);
    groups_.push_back(std::make_shared<const Example>(std::move(example)));
  }
  bad.settle(OnBadRow::kStop, "the rollouts of a step", groups_of_step_ * policy_.num_generations);
  if (std::ssize(groups_) != groups_of_step_) throw std::logic_error("a batch of other groups");
  number_ = number;
  return true;
}

DrawnExamples RolloutSource::next(int64_t, int64_t batch) {
  const int64_t of_step = batch % optimization_.gradient_accumulation_steps;
  const int64_t begin = (of_step * mesh_.data.size() + mesh_.data.rank()) * groups_of_row_;
  return {.examples = {groups_.begin() + begin, groups_.begin() + begin + groups_of_row_},
          .pattern = groups_.front()};
}

void RolloutSource::resume(const std::string& state) {
  if (!state.empty()) {
    throw UserError("the checkpoint has the state of another source of rows than rollouts");
  }
}

}  // namespace longspan
