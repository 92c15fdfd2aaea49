// Answers of the model in training.
#pragma once

#include <set>

#include "longspan/session/session.h"
#include "longspan/train/answer_source.h"

namespace longspan {

struct PolicySettings;

/// Answers depend on the parameters and the seed only.
class SelfAnswers final : public AnswerSource {
 public:
  /// `policy` and `session` must outlive this object.
  SelfAnswers(const PolicySettings& policy, Session& session, std::set<int32_t> end_tokens);

  int64_t update(int64_t policy_version) override { return policy_version; }
  std::optional<std::vector<Answer>> answers(const AskedPrompts& asked,
                                             const Waiting& waiting) override;
  bool has_logprobs() const override { return true; }
  bool is_of_rank_0() const override { return false; }

 private:
  const PolicySettings& policy_;
  Session& session_;
  std::set<int32_t> end_tokens_;
};

}  // namespace longspan
