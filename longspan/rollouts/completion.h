// Requests to a server of rollouts, and its answers, as JSON. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/registers/rollout_server.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Requirements for the answers of a server.
struct CompletionRules {
  const ServerKind& kind;
  std::string model;    // the model's name on the server
  std::string adapter;  // the adapter's name on the server; empty: none
  int64_t max_length;   // most tokens of an answer
  double temperature;
  std::set<int32_t> end_tokens;
  int64_t vocab_size;
  // For a server that exchanges texts instead of token ids
  std::optional<Tokenizer> tokenizer = {};
  std::optional<int32_t> end_of_text = {};  // the token after a text that the model ended
};

/// An answer of a server.
struct Completion {
  std::vector<int32_t> token_ids;  // with the end token
  std::vector<double> logprobs;    // of each token; empty: the kind of server has none
  bool has_end;                    // the last token ended the answer; otherwise: truncated
  bool operator==(const Completion&) const = default;
};

/// Returns the body of a request for `count` answers. Throws UserError, whose message is a clause
/// without the place, if the server takes texts and no text encodes to the prompt.
std::string completion_request(const CompletionRules& rules, const std::vector<int32_t>& prompt,
                               int64_t count, uint64_t seed);

/// Returns the answers in the body of a response; fewer than `count` if the server returned fewer
/// or aborted some. Throws UserError, whose message begins with `place`: no JSON, no answer or too
/// many, a prompt that differs from the sent prompt, no token ids, ids outside of the vocabulary,
/// different numbers of ids and log-probabilities, a log-probability that is missing or above 0,
/// more tokens than max_length, an end without a token that ends an answer, tokens after such a
/// token. A text becomes tokens by completion_of_text().
std::vector<Completion> completions_from(std::string_view body, const CompletionRules& rules,
                                         const std::vector<int32_t>& prompt, int64_t count,
                                         const std::string& place);

}  // namespace longspan
