// Answers of a server, which gets the weights of the model in training.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>

#include "longspan/registers/rollout_server.h"
#include "longspan/rollouts/server_client.h"
#include "longspan/train/answer_source.h"
#include "longspan/train/file_rollouts.h"
#include "longspan/train/policy_folders.h"

namespace longspan {

/// Rank 0 talks to the server. If a server changes its weights in place, the end of an answer may
/// come from newer weights than its beginning.
class ServerAnswers final : public AnswerSource {
 public:
  struct Parts {
    RolloutRun run;
    std::string model;  // the model's name on the server
    std::set<int32_t> end_tokens;
    int64_t vocab_size;
    Tokenizer tokenizer;
    std::optional<int32_t> end_of_text;  // the token that ends an answer that is a text
    std::unique_ptr<PolicyFolders> folders;
  };
  /// Throws UserError: there is no API key in rollout_api_key_env.
  explicit ServerAnswers(Parts parts);

  /// Gives the server the present weights at the first call, and then every rollout_update_steps
  /// batches.
  int64_t update(int64_t policy_version) override;
  std::optional<std::vector<Answer>> answers(const AskedPrompts& asked,
                                             const Waiting& waiting) override;
  bool has_logprobs() const override { return !kind_.logprobs.empty(); }
  bool is_of_rank_0() const override { return true; }

 private:
  /// Weights that the server has received.
  struct Told {
    int64_t batch, version;
  };

  /// Tells the server of a folder with the weights. Returns false if the run was asked to stop.
  bool tell(int64_t version, const std::string& path, const Waiting& waiting) const;
  bool change_in_place(int64_t version, const std::string& path, const Waiting& waiting) const;
  /// Resumes a paused server within a few seconds, also where the run was asked to stop.
  void resume() const;
  /// Removes folders and adapters that no batch from `batch` on uses.
  bool remove_unused(int64_t batch, const Waiting& waiting);
  std::string adapter_of(int64_t version) const;
  /// True if each request names the version of its weights. The server then has several versions.
  bool names_versions() const;

  Parts parts_;
  const ServerKind& kind_;
  UpdateWay way_;
  ServerClient client_;
  std::string adapters_;   // prefix of the adapters' names, different in each run
  std::deque<Told> told_;  // oldest first; on the server: the last, or with names_versions() all
};

}  // namespace longspan
