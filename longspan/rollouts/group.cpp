#include "longspan/rollouts/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "longspan/data/bad_rows.h"
#include "longspan/rollouts/rollout_check.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

constexpr size_t kMostGroupsNamed = 5;

/// Throws where two groups of a batch have a rollout of the same id.
void require_own_ids(std::deque<RolloutGroup>::const_iterator begin,
                     std::deque<RolloutGroup>::const_iterator end) {
  std::unordered_map<std::string_view, const Rollout*> seen;
  for (auto group = begin; group != end; ++group) {
    for (const Rollout& rollout : group->rollouts) {
      if (rollout.id.empty()) continue;
      const auto [first, is_new] = seen.emplace(rollout.id, &rollout);
      if (is_new) continue;
      throw RowError(fmt::format("{}: the id \"{}\" is also that of {}; ids of a batch must differ",
                                 place_of(rollout), shortened(rollout.id, 80),
                                 place_of(*first->second)));
    }
  }
}

}  // namespace

void GroupCollector::add(Rollout rollout) {
  const auto [place, is_new] = places_.try_emplace(rollout.group, num_opened_);
  if (is_new) open_[num_opened_++].name = rollout.group;
  RolloutGroup& group = open_.at(place->second);
  group.rollouts.push_back(std::move(rollout));
  if (!rules_.num_generations || std::ssize(group.rollouts) < *rules_.num_generations) return;
  RolloutGroup whole = std::move(group);
  open_.erase(place->second);
  places_.erase(place);
  complete(std::move(whole));
}

void GroupCollector::complete(RolloutGroup group) {
  check_links(group.rollouts);
  complete_.push_back(std::move(group));
}

void GroupCollector::finish() {
  if (rules_.num_generations && !open_.empty()) {
    throw UserError(fmt::format(
        "{}. The file has no further rollouts: add the missing ones, remove the group's rollouts, "
        "or set num_generations.",
        incomplete()));
  }
  std::map<size_t, RolloutGroup> rest = std::move(open_);
  open_.clear();
  places_.clear();
  for (auto& [order, group] : rest) complete(std::move(group));
}

std::string GroupCollector::incomplete() const {
  if (open_.empty()) return "";
  std::vector<std::string> named;
  for (const auto& [order, group] : open_) {
    if (named.size() == kMostGroupsNamed) {
      named.push_back(fmt::format("and {} more", open_.size() - kMostGroupsNamed));
      break;
    }
    const auto size = std::ssize(group.rollouts);
    named.push_back(
        rules_.num_generations
            ? fmt::format("\"{}\" has {} of {} rollouts", shortened(group.name, 80), size,
                          *rules_.num_generations)
            : fmt::format("\"{}\" has {}", shortened(group.name, 80), counted(size, "rollout")));
  }
  const auto num_open = static_cast<int64_t>(open_.size());
  return fmt::format("{} {} incomplete: {}", counted(num_open, "group"),
                     num_open == 1 ? "is" : "are", fmt::join(named, ", "));
}

bool GroupCollector::is_stale(const RolloutGroup& group, int64_t version) const {
  bool is_stale = false;
  for (const Rollout& rollout : group.rollouts) {
    if (!rollout.policy_version) {
      if (!rules_.max_staleness) continue;
      throw RowError(fmt::format(
          "{}: policy_version is missing, and max_staleness bounds the age of rollouts. Add "
          "policy_version, or remove max_staleness.",
          place_of(rollout)));
    }
    const int64_t sampled = *rollout.policy_version;
    if (sampled > version) {
      throw RowError(fmt::format(
          "{}: policy_version is {}, and the policy has had only {}. Rollouts of another run need "
          "other versions, or none.",
          place_of(rollout), sampled, counted(version, "update")));
    }
    if (rules_.max_staleness && version - sampled > *rules_.max_staleness) is_stale = true;
  }
  return is_stale;
}

std::vector<RolloutGroup> GroupCollector::take(int64_t num_groups, std::optional<int64_t> version,
                                               std::vector<std::string>& notes) {
  // Later groups may have versions that the policy has not reached yet.
  std::vector<size_t> fresh, stale;
  for (size_t i = 0; i < complete_.size() && std::ssize(fresh) < num_groups; ++i) {
    (version && is_stale(complete_[i], *version) ? stale : fresh).push_back(i);
  }
  drop(stale, version.value_or(0), notes);
  if (std::ssize(fresh) < num_groups) return {};
  const auto end = complete_.begin() + num_groups;
  require_own_ids(complete_.begin(), end);
  std::vector<RolloutGroup> groups(std::make_move_iterator(complete_.begin()),
                                   std::make_move_iterator(end));
  complete_.erase(complete_.begin(), end);
  return groups;
}

void GroupCollector::drop(const std::vector<size_t>& stale, int64_t version,
                          std::vector<std::string>& notes) {
  if (stale.empty()) return;
  int64_t num_rollouts = 0;
  for (auto place = stale.rbegin(); place != stale.rend(); ++place) {
    const auto group = complete_.begin() + static_cast<std::ptrdiff_t>(*place);
    num_rollouts += std::ssize(group->rollouts);
    complete_.erase(group);
  }
  num_dropped_ += std::ssize(stale);
  notes.push_back(fmt::format(
      "Dropped {} ({}): a policy_version is below {}, which is {} less max_staleness {}",
      counted(std::ssize(stale), "group"), counted(num_rollouts, "rollout"),
      version - *rules_.max_staleness, counted(version, "update"), *rules_.max_staleness));
}

}  // namespace longspan
