#include "longspan/rollouts/server_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <utility>

#include "longspan/base/fnv1a.h"
#include "longspan/base/user_error.h"
#include "longspan/input/json_text.h"

namespace longspan {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{200}, kLongestPause{5000}, kSlice{100};
/// Seconds of a request where rollout_timeout is 0.
constexpr double kRequestSeconds = 600;
/// Seconds of a question after a failure, whose answer a server knows at once.
constexpr double kListSeconds = 10;

/// Returns a seed that every kind of server accepts.
uint64_t seed_of(uint64_t seed, size_t prompt, int64_t number) {
  return fnv1a(fmt::format("{} {} {}", seed, prompt, number)) & 0x7fffffff;
}

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

/// Returns the last event of a stream of events, whose lines begin with "data: "; any other body
/// unchanged.
std::string last_event(const std::string& body) {
  const std::string event = "data: ";
  const size_t last = ("\n" + body).rfind("\n" + event);
  return body.starts_with(event) ? body.substr(last + event.size()) : body;
}

/// True if a body of status 200 says that the request failed.
bool says_failure(const std::string& body) {
  const auto json = try_parse_json(body);
  const auto has = [&](const char* key, const nlohmann::json& value) {
    return json->contains(key) && json->at(key) == value;
  };
  return json && json->is_object() && (has("success", false) || has("status", "error"));
}

std::string clause_of(const HttpAnswer& answer) {
  return answer.status == 0 ? answer.problem : fmt::format("status {}", answer.status);
}

/// Returns the advice after a failure.
std::string remedy_of(const HttpAnswer& answer, std::string_view otherwise) {
  if (answer.status != 401 && answer.status != 403) return std::string(otherwise);
  return "The server wants another API key: name the environment variable that holds it in "
         "rollout_api_key_env.";
}

}  // namespace

Patience::Patience(std::string url, int64_t timeout)
    : url_(std::move(url)), timeout_(timeout), success_(Clock::now()), pause_(kFirstPause) {}

void Patience::succeeded() {
  success_ = Clock::now();
  pause_ = kFirstPause;
  said_.clear();
}

bool Patience::wait(const std::string& problem, const Waiting& waiting) {
  const Clock::time_point end = success_ + std::chrono::seconds(timeout_);
  if (Clock::now() >= end) {
    throw UserError(fmt::format(
        "{}: {}, for {} s (rollout_timeout). Start the server, or raise rollout_timeout.", url_,
        problem, timeout_));
  }
  if (std::exchange(said_, problem) != problem) {
    waiting.say(fmt::format("Waiting for the server {} ({}).", url_, problem));
  }
  const Clock::time_point until = std::min(end, Clock::now() + pause_);
  pause_ = std::min(2 * pause_, kLongestPause);
  while (Clock::now() < until) {
    if (waiting.stops()) return false;
    std::this_thread::sleep_for(std::min<Clock::duration>(kSlice, until - Clock::now()));
  }
  return !waiting.stops();
}

ServerClient::ServerClient(const std::string& url, int64_t concurrency, int64_t timeout,
                           std::string api_key)
    : url_(without_slash(url)),
      api_key_(std::move(api_key)),
      timeout_(timeout),
      limits_{.total_seconds = timeout > 0 ? static_cast<double>(timeout) : kRequestSeconds,
              .at_once = concurrency} {}

std::optional<std::vector<std::vector<Completion>>> ServerClient::answers(
    const CompletionRules& rules, const std::vector<std::vector<int32_t>>& prompts, int64_t count,
    uint64_t seed, const Waiting& waiting) const {
  Patience patience(url_, timeout_);
  std::vector<std::vector<Completion>> answers(prompts.size());
  for (;;) {
    std::vector<HttpRequest> requests;
    std::vector<std::pair<size_t, int64_t>> asked;  // the prompt of each request, and its answers
    for (size_t i = 0; i < prompts.size(); ++i) {
      const int64_t missing = count - std::ssize(answers[i]);
      const int64_t of_request = rules.kind.count.empty() ? 1 : missing;
      for (int64_t done = 0; done < missing; done += of_request) {
        // A request that failed is repeated as it was.
        const uint64_t own_seed = seed_of(seed, i, std::ssize(answers[i]) + done);
        try {
          requests.push_back({.url = url_ + std::string(rules.kind.path),
                              .json = completion_request(rules, prompts[i], of_request, own_seed),
                              .bearer = api_key_});
        } catch (const UserError& error) {
          throw UserError(fmt::format("prompt {} of {}: {}", i + 1, prompts.size(), error.what()));
        }
        asked.emplace_back(i, of_request);
      }
    }
    if (requests.empty()) return answers;
    const auto responses = answers_of(requests, limits_, waiting.stops);
    if (!responses) return std::nullopt;
    std::string problem;
    bool has_succeeded = false;
    for (size_t i = 0; i < responses->size(); ++i) {
      const std::optional<HttpAnswer>& response = (*responses)[i];
      if (!response) continue;
      const auto [prompt, num_answers] = asked[i];
      const std::string place =
          fmt::format("{}, prompt {} of {}", requests[i].url, prompt + 1, prompts.size());
      if (response->may_pass) {
        problem = clause_of(*response);
      } else if (!response->is_good()) {
        throw UserError(fmt::format(
            "prompt {} of {}: {}. {}", prompt + 1, prompts.size(),
            http_failure(requests[i], *response),
            remedy_of(*response,
                      fmt::format("Check rollout_url, rollout_server and rollout_model ({}).",
                                  rules.adapter.empty() ? rules.model : rules.adapter))));
      } else {
        std::vector<Completion> more =
            completions_from(response->body, rules, prompts[prompt], num_answers, place);
        if (more.empty()) problem = "it broke answers off";
        has_succeeded |= !more.empty();
        std::ranges::move(more, std::back_inserter(answers[prompt]));
      }
    }
    if (has_succeeded) patience.succeeded();
    if (!problem.empty() && !patience.wait(problem, waiting)) return std::nullopt;
  }
}

bool ServerClient::post(std::string_view path, const std::string& json, std::string_view remedy,
                        const Waiting& waiting) const {
  Patience patience(url_, timeout_);
  const HttpRequest request{.url = url_ + std::string(path), .json = json, .bearer = api_key_};
  for (;;) {
    const auto responses = answers_of({request}, limits_, waiting.stops);
    if (!responses) return false;
    const HttpAnswer& response = responses->front().value();
    if (response.may_pass) {
      if (!patience.wait(clause_of(response), waiting)) return false;
      continue;
    }
    HttpAnswer last = response;
    last.body = last_event(response.body);
    if (response.is_good() && !says_failure(last.body)) return true;
    throw UserError(fmt::format("{}. {}", http_failure(request, last), remedy_of(last, remedy)));
  }
}

bool ServerClient::lists(std::string_view path, const std::string& name,
                         const std::function<bool()>& stops) const {
  const HttpRequest request{.url = url_ + std::string(path), .json = {}, .bearer = api_key_};
  const auto responses = answers_of({request}, {.total_seconds = kListSeconds}, stops);
  if (!responses || !responses->front()->is_good()) return false;
  const auto body = try_parse_json(responses->front()->body);
  if (!body || !body->is_object() || !body->contains("data")) return false;
  return std::ranges::any_of(body->at("data"), [&](const nlohmann::json& model) {
    return model.is_object() && model.contains("id") && model.at("id") == name;
  });
}

}  // namespace longspan
