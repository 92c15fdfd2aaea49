// Rollouts: answers of a policy, with the numbers that training on them needs. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace longspan {

/// Consecutive tokens of one conversation: a prompt with an answer of one or several turns, or the
/// continuation of another rollout. Vectors with one element per token have the length of
/// `token_ids`, or are empty where the comment says so.
struct Rollout {
  std::string id;      // unique in a batch; empty: no other rollout continues this one
  std::string group;   // rollouts of one group answer the same prompt; their rewards are compared
  std::string parent;  // id of the continued rollout, in the same group; empty: none
  std::vector<int32_t> token_ids;  // without the tokens of the parent
  /// True: the policy sampled the token, and the token is trained. False: prompt, tool output.
  std::vector<bool> mask;
  /// log p of each token by the sampler; 0 where `mask` is false. Empty: unknown.
  std::vector<double> logprobs = {};
  /// log p of each token by a teacher (stage distill); 0 where `mask` is false. Empty: unknown.
  std::vector<double> teacher_logprobs = {};
  std::optional<double> reward = {};           // of the whole rollout; nullopt: not computed yet
  std::map<std::string, double> rewards = {};  // by name: the parts of `reward`, for the log
  std::vector<double> advantages = {};         // replaces `reward`; empty: from the rewards
  std::optional<int64_t> policy_version = {};  // updates before sampling; nullopt: unknown
  bool is_truncated = false;                   // the answer ended by its length limit
  std::string source = {};                     // for messages, e.g. "rollouts.jsonl, line 7"
  bool operator==(const Rollout&) const = default;
};

}  // namespace longspan
