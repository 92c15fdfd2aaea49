#include "longspan/rollouts/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"
#include "longspan/rollouts/text_completion.h"
#include "longspan/text/counted.h"
#include "longspan/text/shown.h"

namespace longspan {
namespace {

using JsonOfServer = nlohmann::json;

constexpr size_t kShownOfAnswer = 120;
/// Log-probabilities above 0 by rounding.
constexpr double kRounding = 1e-4;

/// Throws problems of one response.
class Place {
 public:
  explicit Place(const std::string& place) : place_(place) {}
  [[noreturn]] void fail(const std::string& problem) const {
    throw UserError(fmt::format("{}: {}", place_, problem));
  }

 private:
  const std::string& place_;
};

JsonOfServer::json_pointer pointer(std::string_view text) {
  return JsonOfServer::json_pointer(std::string(text));
}

/// Returns the value at a pointer; null: there is none.
const JsonOfServer* value_at(const JsonOfServer& json, std::string_view where) {
  const JsonOfServer::json_pointer at = pointer(where);
  return json.contains(at) ? &json.at(at) : nullptr;
}

const JsonOfServer& list_at(const JsonOfServer& choice, std::string_view where,
                            const std::string& missing, const Place& place) {
  const JsonOfServer* list = value_at(choice, where);
  if (list == nullptr || !list->is_array()) {
    place.fail(fmt::format("{}: {}", missing, shortened(choice.dump(), kShownOfAnswer)));
  }
  return *list;
}

int64_t whole_number(const JsonOfServer* value, int64_t end) {
  if (value == nullptr || !value->is_number_integer()) return -1;
  const auto number = value->get<int64_t>();
  return number < 0 || number >= end ? -1 : number;
}

std::string shown_value(const JsonOfServer* value) {
  return value == nullptr ? "nothing" : shortened(value->dump(), kShownOfAnswer);
}

void check_prompt(const JsonOfServer& choice, const ServerKind& kind,
                  const std::vector<int32_t>& prompt, const Place& place) {
  if (!kind.prompt_ids.empty()) {
    const JsonOfServer& echo =
        list_at(choice, kind.prompt_ids, "the answer does not repeat the prompt", place);
    if (echo != JsonOfServer(prompt)) {
      place.fail(fmt::format("the server read another prompt than the sent one: {}; sent was {}",
                             shortened(echo.dump(), kShownOfAnswer),
                             shortened(JsonOfServer(prompt).dump(), kShownOfAnswer)));
    }
  }
  if (!kind.num_prompt.empty()) {
    const JsonOfServer* number = value_at(choice, kind.num_prompt);
    if (number == nullptr || *number != JsonOfServer(prompt.size())) {
      place.fail(fmt::format("the server read a prompt of another length: {}; sent were {}",
                             shown_value(number), counted(std::ssize(prompt), "token")));
    }
  }
}

double logprob_of(const JsonOfServer& element, std::string_view where, const Place& place) {
  const JsonOfServer* value = value_at(element, where);
  const double logprob = value != nullptr && value->is_number() ? value->get<double>() : 1;
  if (!std::isfinite(logprob) || logprob > kRounding) {
    place.fail(fmt::format("{} is no log-probability", shown_value(value)));
  }
  return std::min(logprob, 0.0);
}

std::vector<double> logprobs_of(const JsonOfServer& choice, const ServerKind& kind,
                                size_t num_tokens, const Place& place) {
  const JsonOfServer& list =
      list_at(choice, kind.logprobs,
              fmt::format("the answer has no log-probabilities ({}); rollout_server is {}",
                          kind.logprobs, kind.name),
              place);
  if (list.size() != num_tokens) {
    place.fail(fmt::format("the answer has {} and {}",
                           counted(static_cast<int64_t>(num_tokens), "token id"),
                           counted(std::ssize(list), "log-probability")));
  }
  std::vector<double> logprobs;
  for (const JsonOfServer& element : list) {
    logprobs.push_back(logprob_of(element, kind.logprob, place));
  }
  return logprobs;
}

/// Checks where the answer ends. Sets Completion::has_end.
void check_end(const std::string& finish, const CompletionRules& rules, const Place& place,
               Completion& completion) {
  const std::vector<int32_t>& ids = completion.token_ids;
  if (ids.empty()) place.fail("the answer has no tokens");
  if (std::ssize(ids) > rules.max_length) {
    place.fail(fmt::format("the answer has {}, more than max_completion_length ({})",
                           counted(std::ssize(ids), "token"), rules.max_length));
  }
  // A server may end answers by more tokens than this run knows.
  completion.has_end = rules.end_tokens.contains(ids.back()) ||
                       (finish == rules.kind.ended && rules.kind.returns_end);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    if (!rules.end_tokens.contains(ids[i])) continue;
    place.fail(fmt::format("the answer goes on after its token {}, which ends an answer", ids[i]));
  }
  if (finish == rules.kind.ended && !completion.has_end) {
    place.fail(fmt::format(
        "the answer has ended by itself, and its last token, {}, is no token that ends an answer "
        "({}); the end could not be trained. Serve the model with the same tokens that end an "
        "answer, and let the server return them",
        ids.back(), fmt::join(rules.end_tokens, ", ")));
  }
}

/// Reads an answer that is a text.
Completion completion_at(const JsonOfServer& choice, bool has_ended, const CompletionRules& rules,
                         const Place& place) {
  const JsonOfServer* text = value_at(choice, rules.kind.text);
  if (text == nullptr || !text->is_string()) {
    place.fail(fmt::format("the answer has no text ({}); rollout_server is {}: {}", rules.kind.text,
                           rules.kind.name, shortened(choice.dump(), kShownOfAnswer)));
  }
  Completion completion = completion_of_text(rules, text->get<std::string>(), has_ended);
  if (completion.token_ids.empty()) place.fail("the answer has no tokens");
  for (const int32_t id : completion.token_ids) {
    if (id < rules.vocab_size) continue;
    place.fail(
        fmt::format("the tokenizer's token {} is no token of the model, whose vocabulary has {}",
                    id, rules.vocab_size));
  }
  return completion;
}

/// Returns nullopt for an answer that the server broke off.
std::optional<Completion> completion_from(const JsonOfServer& choice, const CompletionRules& rules,
                                          const std::vector<int32_t>& prompt, const Place& place) {
  const ServerKind& kind = rules.kind;
  const JsonOfServer* reason = value_at(choice, kind.finish);
  const std::string finish =
      reason != nullptr && reason->is_string() ? reason->get<std::string>() : "";
  if (!kind.aborted.empty() && finish == kind.aborted) return std::nullopt;
  if (finish != kind.ended && finish != kind.truncated) {
    place.fail(fmt::format("the answer ended by {}; wanted is {} or {}", shown_value(reason),
                           kind.ended, kind.truncated));
  }
  check_prompt(choice, kind, prompt, place);
  if (kind.token_ids.empty()) return completion_at(choice, finish == kind.ended, rules, place);
  const JsonOfServer& ids =
      list_at(choice, kind.token_ids,
              fmt::format("the answer has no token ids ({}), and text is not enough "
                          "for training; rollout_server is {}",
                          kind.token_ids, kind.name),
              place);
  Completion completion{};
  for (const JsonOfServer& element : ids) {
    const int64_t id = whole_number(value_at(element, kind.id), rules.vocab_size);
    if (id < 0) {
      place.fail(fmt::format("{} is no token id; the vocabulary has {}",
                             shortened(element.dump(), kShownOfAnswer), rules.vocab_size));
    }
    completion.token_ids.push_back(static_cast<int32_t>(id));
  }
  if (!kind.logprobs.empty()) completion.logprobs = logprobs_of(choice, kind, ids.size(), place);
  check_end(finish, rules, place, completion);
  return completion;
}

}  // namespace

std::string completion_request(const CompletionRules& rules, const std::vector<int32_t>& prompt,
                               int64_t count, uint64_t seed) {
  const ServerKind& kind = rules.kind;
  JsonOfServer request = parse_json(kind.fixed, "the fields of a kind of server");
  const auto set = [&](std::string_view where, const JsonOfServer& value) {
    if (!where.empty()) request[pointer(where)] = value;
  };
  if (kind.text.empty()) {
    set(kind.prompt, prompt);
  } else {
    set(kind.prompt, text_of_prompt(rules, prompt));
  }
  set(kind.length, rules.max_length);
  set(kind.count, count);
  set(kind.model, rules.model);
  if (!rules.adapter.empty()) set(kind.adapter, rules.adapter);
  set(kind.temperature, rules.temperature);
  set(kind.seed, seed);
  set(kind.ends, rules.end_tokens);
  if (!kind.json_text.empty()) set(kind.json_text, request.at(pointer(kind.json_text)).dump());
  return request.dump();
}

std::vector<Completion> completions_from(std::string_view body, const CompletionRules& rules,
                                         const std::vector<int32_t>& prompt, int64_t count,
                                         const std::string& place_text) {
  const Place place(place_text);
  const std::optional<JsonOfServer> response = try_parse_json(body);
  if (!response || !response->is_structured()) {
    place.fail(fmt::format("the answer is no JSON: {}", shortened(body, kShownOfAnswer)));
  }
  const JsonOfServer* choices = value_at(*response, rules.kind.choices);
  if (choices != nullptr && rules.kind.choices.empty() && choices->is_object()) {
    const std::optional<Completion> one = completion_from(*choices, rules, prompt, place);
    return one ? std::vector{*one} : std::vector<Completion>();
  }
  if (choices == nullptr || !choices->is_array() || choices->empty() ||
      std::ssize(*choices) > count) {
    place.fail(fmt::format("the response has no list of 1 to {} answers: {}", count,
                           shortened(body, kShownOfAnswer)));
  }
  std::vector<Completion> completions;
  for (const JsonOfServer& choice : *choices) {
    std::optional<Completion> one = completion_from(choice, rules, prompt, place);
    if (one) completions.push_back(*std::move(one));
  }
  return completions;
}

}  // namespace longspan
