#include "longspan/rollouts/rollout_examples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "longspan/rollouts/rollout_check.h"
#include "longspan/text/counted.h"

namespace longspan {
namespace {

/// One column: its name, its values in a rollout, and the field of a file.
struct ColumnKind {
  const char* name;
  const char* field;
  bool RolloutColumns::* wanted;
  std::vector<double> Rollout::* values;
};
constexpr ColumnKind kColumnKinds[] = {
    {kSamplerLogprobs, "logprobs", &RolloutColumns::sampler_logprobs, &Rollout::logprobs},
    {kTeacherLogprobs, "teacher_logprobs", &RolloutColumns::teacher_logprobs,
     &Rollout::teacher_logprobs},
    {kAdvantage, "advantage", &RolloutColumns::advantages, &Rollout::advantages}};

/// Returns the number of tokens from the conversation's beginning to the end of each rollout.
std::vector<int64_t> path_lengths(const std::vector<Rollout>& rollouts,
                                  const std::vector<int64_t>& parents) {
  std::vector<int64_t> lengths(rollouts.size(), -1);
  for (size_t begin = 0; begin < rollouts.size(); ++begin) {
    std::vector<int64_t> path;  // up to a rollout of known length
    auto at = static_cast<int64_t>(begin);
    for (; at >= 0 && lengths[at] < 0; at = parents[at]) path.push_back(at);
    int64_t length = at < 0 ? 0 : lengths[at];
    for (size_t k = path.size(); k-- > 0;) {
      length += std::ssize(rollouts[path[k]].token_ids);
      lengths[path[k]] = length;
    }
  }
  return lengths;
}

class GroupEncoder {
 public:
  GroupEncoder(const std::vector<Rollout>& rollouts, const RolloutEncoding& encoding)
      : rollouts_(rollouts),
        encoding_(encoding),
        parents_(parents_of(rollouts)),
        lengths_(path_lengths(rollouts, parents_)) {}

  int64_t length(size_t i) const { return lengths_[i]; }

  Sample sample(size_t i) const {
    const Rollout& rollout = rollouts_[i];
    Sample sample;
    std::vector<int64_t> path;
    for (auto at = static_cast<int64_t>(i); at >= 0; at = parents_[at]) path.push_back(at);
    sample.input_ids.reserve(lengths_[i]);
    for (size_t k = path.size(); k-- > 0;) {
      const std::vector<int32_t>& ids = rollouts_[path[k]].token_ids;
      sample.input_ids.insert(sample.input_ids.end(), ids.begin(), ids.end());
    }
    sample.labels.assign(lengths_[i], static_cast<int32_t>(kIgnoreLabel));
    const bool trains = !(encoding_.masks_truncated && rollout.is_truncated);
    const int64_t begin = lengths_[i] - std::ssize(rollout.token_ids);
    for (size_t k = 0; trains && k < rollout.token_ids.size(); ++k) {
      if (rollout.mask[k]) sample.labels[begin + k] = rollout.token_ids[k];
    }
    for (const ColumnKind& kind : kColumnKinds) {
      if (encoding_.columns.*kind.wanted) {
        sample.columns[kind.name] = {column(rollout, kind, begin, sample.labels), 0};
      }
    }
    return sample;
  }

 private:
  at::Tensor column(const Rollout& rollout, const ColumnKind& kind, int64_t begin,
                    const std::vector<int32_t>& labels) const {
    const std::vector<double>& values = rollout.*kind.values;
    if (values.empty()) {
      throw RowError(
          fmt::format("{}: {} is missing, and the run needs it", place_of(rollout), kind.field));
    }
    at::Tensor column = at::zeros({std::ssize(labels)}, at::kDouble);
    double* const numbers = column.mutable_data_ptr<double>();
    // A document's first token is no label (check_rollout).
    for (int64_t at = std::max<int64_t>(begin, 1); at < std::ssize(labels); ++at) {
      if (labels[at] != kIgnoreLabel) numbers[at - 1] = values[at - begin];
    }
    return column;
  }

  const std::vector<Rollout>& rollouts_;
  const RolloutEncoding& encoding_;
  std::vector<int64_t> parents_, lengths_;
};

}  // namespace

RolloutColumns columns_of(const std::vector<RolloutGroup>& groups) {
  RolloutColumns columns;
  for (const ColumnKind& kind : kColumnKinds) {
    const Rollout *with = nullptr, *without = nullptr;
    for (const RolloutGroup& group : groups) {
      for (const Rollout& rollout : group.rollouts) {
        const Rollout*& first = (rollout.*kind.values).empty() ? without : with;
        if (first == nullptr) first = &rollout;
      }
    }
    if (with != nullptr && without != nullptr) {
      throw RowError(
          fmt::format("{}: {} is missing, and {} has it; all rollouts must have it, or "
                      "none",
                      place_of(*without), kind.field, place_of(*with)));
    }
    columns.*kind.wanted = with != nullptr;
  }
  return columns;
}

RolloutExample encode_rollouts(const RolloutGroup& group, const RolloutEncoding& encoding,
                               BadRows& bad) {
  const GroupEncoder encoder(group.rollouts, encoding);
  RolloutExample encoded;
  for (size_t i = 0; i < group.rollouts.size(); ++i) {
    const Rollout& rollout = group.rollouts[i];
    if (encoder.length(i) > encoding.cutoff_len) {
      bad.add(fmt::format(
          "{}: the rollout has {}{}, more than cutoff_len {}; rollouts are not cut. "
          "Raise cutoff_len.",
          place_of(rollout), counted(encoder.length(i), "token"),
          rollout.parent.empty() ? "" : " with those of its parents", encoding.cutoff_len));
      continue;
    }
    encoded.example.documents.push_back(encoder.sample(i));
    encoded.kept.push_back(static_cast<int64_t>(i));
    encoded.num_truncated += rollout.is_truncated;
    if (rollout.reward) encoded.rewards.push_back(*rollout.reward);
  }
  if (encoded.rewards.size() != encoded.kept.size()) encoded.rewards.clear();
  return encoded;
}

}  // namespace longspan
