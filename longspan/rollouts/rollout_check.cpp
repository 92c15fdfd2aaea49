#include "longspan/rollouts/rollout_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "longspan/base/number_text.h"
#include "longspan/data/bad_rows.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr size_t kNameBytes = 80;

[[noreturn]] void refuse_rollout(const Rollout& rollout, const std::string& problem) {
  throw RowError(fmt::format("{}: {}", place_of(rollout), problem));
}

void require_one_per_token(const Rollout& rollout, std::string_view name, size_t size) {
  if (size == rollout.token_ids.size()) return;
  refuse_rollout(rollout, fmt::format("{} has {} for {}; wanted is one for each token", name,
                                      counted(static_cast<int64_t>(size), "value"),
                                      counted(std::ssize(rollout.token_ids), "token")));
}

void check_logprobs(const Rollout& rollout, std::string_view name,
                    const std::vector<double>& values) {
  if (values.empty()) return;
  require_one_per_token(rollout, name, values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && values[i] <= 0) continue;
    refuse_rollout(rollout, fmt::format("{} of token {} is {}; a log-probability is a finite "
                                        "number of at most 0",
                                        name, i, number_text(values[i])));
  }
}

void check_finite(const Rollout& rollout, std::string_view name, double value) {
  if (std::isfinite(value)) return;
  refuse_rollout(rollout,
                 fmt::format("{} is {}; wanted is a finite number", name, number_text(value)));
}

/// The indices of rollouts by id. Of equal ids, the first counts.
std::unordered_map<std::string_view, size_t> indices_by_id(const std::vector<Rollout>& rollouts) {
  std::unordered_map<std::string_view, size_t> indices;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    if (!rollouts[i].id.empty()) indices.emplace(rollouts[i].id, i);
  }
  return indices;
}

/// Finds problems along the chains of parents, without recursion.
class LinkChecker {
 public:
  explicit LinkChecker(const std::vector<Rollout>& rollouts)
      : rollouts_(rollouts),
        indices_(indices_by_id(rollouts)),
        problems_(rollouts.size()),
        states_(rollouts.size(), State::kNew) {}

  std::vector<std::string> problems() {
    for (size_t i = 0; i < rollouts_.size(); ++i) walk_up(i);
    return std::move(problems_);
  }

 private:
  enum class State { kNew, kOnPath, kDone };

  std::string text(size_t i, const std::string& problem) const {
    return fmt::format("{}: {}", place_of(rollouts_[i]), problem);
  }

  /// Returns the problem that the rollout has by itself.
  std::string own_problem(size_t i) const {
    const Rollout& rollout = rollouts_[i];
    if (!rollout.id.empty() && indices_.at(rollout.id) != i) {
      return text(i, fmt::format("the id \"{}\" is also that of {}; ids must differ",
                                 shortened(rollout.id, kNameBytes),
                                 place_of(rollouts_[indices_.at(rollout.id)])));
    }
    if (rollout.parent.empty()) return "";
    const auto parent = indices_.find(rollout.parent);
    const std::string name = shortened(rollout.parent, kNameBytes);
    if (parent == indices_.end()) {
      return text(i,
                  fmt::format("the parent \"{}\" is unknown; no usable rollout has this id", name));
    }
    const std::string& group = rollouts_[parent->second].group;
    if (group == rollout.group) return "";
    return text(
        i, fmt::format("the parent \"{}\" is in group \"{}\", and the rollout in group "
                       "\"{}\"; both must be in one group",
                       name, shortened(group, kNameBytes), shortened(rollout.group, kNameBytes)));
  }

  void walk_up(size_t begin) {
    std::vector<size_t> path;
    size_t at = begin;
    bool goes_on = true;
    while (goes_on && states_[at] == State::kNew) {
      states_[at] = State::kOnPath;
      path.push_back(at);
      problems_[at] = own_problem(at);
      goes_on = problems_[at].empty() && !rollouts_[at].parent.empty();
      if (goes_on) at = indices_.at(rollouts_[at].parent);
    }
    if (goes_on && states_[at] == State::kOnPath) refuse_cycle(path, at);
    for (size_t k = path.size(); k-- > 0;) settle(path[k]);
  }

  void refuse_cycle(const std::vector<size_t>& path, size_t first) {
    for (auto i = std::ranges::find(path, first); i != path.end(); ++i) {
      problems_[*i] = text(*i, "its parents lead in a circle; a rollout continues an earlier one");
    }
  }

  void settle(size_t i) {
    states_[i] = State::kDone;
    if (!problems_[i].empty() || rollouts_[i].parent.empty()) return;
    if (problems_[indices_.at(rollouts_[i].parent)].empty()) return;
    problems_[i] = text(i, fmt::format("the parent \"{}\" cannot be used",
                                       shortened(rollouts_[i].parent, kNameBytes)));
  }

  const std::vector<Rollout>& rollouts_;
  std::unordered_map<std::string_view, size_t> indices_;
  std::vector<std::string> problems_;
  std::vector<State> states_;
};

}  // namespace

std::string place_of(const Rollout& rollout) {
  if (!rollout.source.empty()) return rollout.source;
  if (!rollout.id.empty()) return fmt::format("rollout \"{}\"", shortened(rollout.id, kNameBytes));
  return fmt::format("a rollout of group \"{}\"", shortened(rollout.group, kNameBytes));
}

int64_t num_trained(const Rollout& rollout) { return std::ranges::count(rollout.mask, true); }

void check_rollout(const Rollout& rollout, int64_t vocab_size) {
  if (rollout.token_ids.empty()) refuse_rollout(rollout, "there are no tokens");
  for (size_t i = 0; i < rollout.token_ids.size(); ++i) {
    const int32_t id = rollout.token_ids[i];
    if (id >= 0 && id < vocab_size) continue;
    refuse_rollout(rollout,
                   fmt::format("token {} is {}; the model's vocabulary has the ids 0 to {}", i, id,
                               vocab_size - 1));
  }
  require_one_per_token(rollout, "mask", rollout.mask.size());
  if (num_trained(rollout) == 0) {
    refuse_rollout(rollout, "no token is trained: the mask has no true value");
  }
  if (rollout.parent.empty() && rollout.mask.front()) {
    refuse_rollout(rollout,
                   "the mask marks the first token of the conversation, which no token predicts; "
                   "give false (0) for it");
  }
  check_logprobs(rollout, "logprobs", rollout.logprobs);
  check_logprobs(rollout, "teacher_logprobs", rollout.teacher_logprobs);
  if (rollout.reward) check_finite(rollout, "reward", *rollout.reward);
  for (const auto& [name, value] : rollout.rewards) {
    check_finite(rollout, fmt::format("the reward \"{}\"", shortened(name, kNameBytes)), value);
  }
  if (!rollout.advantages.empty()) {
    require_one_per_token(rollout, "advantage", rollout.advantages.size());
  }
  for (const double advantage : rollout.advantages) check_finite(rollout, "advantage", advantage);
  if (rollout.policy_version && *rollout.policy_version < 0) {
    refuse_rollout(rollout, fmt::format("policy_version is {}; the first version is 0",
                                        *rollout.policy_version));
  }
}

std::vector<std::string> link_problems(const std::vector<Rollout>& rollouts) {
  return LinkChecker(rollouts).problems();
}

void check_links(const std::vector<Rollout>& rollouts) {
  for (const std::string& problem : link_problems(rollouts)) {
    if (!problem.empty()) throw RowError(problem);
  }
}

std::vector<int64_t> parents_of(const std::vector<Rollout>& rollouts) {
  const auto indices = indices_by_id(rollouts);
  std::vector<int64_t> parents;
  for (const Rollout& rollout : rollouts) {
    parents.push_back(rollout.parent.empty() ? -1
                                             : static_cast<int64_t>(indices.at(rollout.parent)));
  }
  return parents;
}

}  // namespace longspan
